#include "core/comm/named/stall_watch.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/base/strings.h"

namespace lockstep {
namespace {

constexpr double kEndless_s = std::numeric_limits<double>::infinity();

}  // namespace

std::optional<double> StallWatch::Look(Sequencer& sequencer, double now, std::vector<std::string>* warnings) {
  const std::optional<double> warning = options_.warning_s, timeout = options_.timeout_s;
  if (!warning && !timeout) return std::nullopt;
  const double first = std::min(warning.value_or(kEndless_s), timeout.value_or(kEndless_s));
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
               JoinWithAnd(wait.missing), " did not request it within ", static_cast<int64_t>(waited), " s");
    if (timeout && waited >= *timeout) {
      sequencer.Fail(wait.name, DeadlineExceeded(text));
      next = 0;
      continue;
    }
    if (timeout) next = std::min(next, *timeout - waited);
    if (!warning) continue;
    const auto before = warned_.find(wait.name);
    double last = before == warned_.end() ? wait.since : before->second;
    if (now - last >= *warning) {
      warnings->push_back(text + "; other ranks wait");
      last = now;
    }
    if (last != wait.since) warned[wait.name] = last;
    next = std::min(next, last + *warning - now);
  }
  warned_ = std::move(warned);
  return next;
}

}  // namespace lockstep
