#include "core/comm/named/stall_watch.h"

#include <algorithm>
#include <utility>

#include "core/base/strings.h"

namespace lockstep {

double StallWatch::Look(Sequencer& sequencer, double now, std::vector<std::string>* warnings) {
  const double warning = options_.warning_s, timeout = options_.timeout_s;
  if (warning <= 0 && timeout <= 0) return -1;
  const double first = warning > 0 && timeout > 0 ? std::min(warning, timeout) : std::max(warning, timeout);
  // Requests may be made between two checks, so the checks are repeated.
  double next = first / 4;
  if (sequencer.WaitingSince() + first > now) {
    warned_.clear();
    return std::min(next, sequencer.WaitingSince() + first - now);
  }
  std::unordered_map<std::string, double> warned;
  for (const Sequencer::Wait& wait : sequencer.Waiting()) {
    const double waited = now - wait.since;
    const std::string text =
        StrCat(NamedKindName(wait.kind), " '", wait.name, "': ", wait.missing.size() > 1 ? "ranks " : "rank ",
               JoinWithAnd(wait.missing), " did not ask for it in ", static_cast<int64_t>(waited), " s");
    if (timeout > 0 && waited >= timeout) {
      sequencer.Fail(wait.name, DeadlineExceeded(text));
      next = 0;
      continue;
    }
    if (timeout > 0) next = std::min(next, timeout - waited);
    if (warning <= 0) continue;
    const auto before = warned_.find(wait.name);
    double last = before == warned_.end() ? wait.since : before->second;
    if (now - last >= warning) {
      warnings->push_back(text + ", others wait");
      last = now;
    }
    if (last != wait.since) warned[wait.name] = last;
    next = std::min(next, last + warning - now);
  }
  warned_ = std::move(warned);
  return next;
}

}  // namespace lockstep
