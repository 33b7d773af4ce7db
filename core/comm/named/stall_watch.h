#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/comm/named/sequencer.h"

namespace lockstep {

struct StallOptions {
  // The seconds after which to warn about a request that some ranks have not made, and again after each further such
  // period. No value: it never warns.
  std::optional<double> warning_s = 60;
  // The seconds after which such a request ends with DEADLINE_EXCEEDED on the ranks that made it; no value: it waits
  // without a limit.
  std::optional<double> timeout_s;
};

// Looks for requests that wait too long in a sequencer. Only keeps records; thread-compatible.
class StallWatch {
 public:
  explicit StallWatch(const StallOptions& options) : options_(options) {}

  // Gives up what took too long, and adds warnings. Returns the seconds until the next check: 0 if something was given
  // up, no value if no check is needed, because neither time is set.
  std::optional<double> Look(Sequencer& sequencer, double now, std::vector<std::string>* warnings);

 private:
  const StallOptions options_;
  std::unordered_map<std::string, double> warned_;  // when a request was warned of
};

}  // namespace lockstep
