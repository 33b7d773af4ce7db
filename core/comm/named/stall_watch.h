#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "core/comm/named/sequencer.h"

namespace lockstep {

struct StallOptions {
  // After how many seconds to warn of a request that some ranks have not made, and again each time as many have passed;
  // 0: never.
  double warning_s = 60;
  // After how many seconds such a request ends with DEADLINE_EXCEEDED on the ranks that made it; 0: never.
  double timeout_s = 0;
};

// Looks for requests that wait too long in a sequencer. Pure bookkeeping; thread-compatible.
class StallWatch {
 public:
  explicit StallWatch(const StallOptions& options) : options_(options) {}

  // Gives up what took too long, and adds what is to be warned of. Gives the seconds after which to look again: 0 where
  // something was given up, negative for never.
  double Look(Sequencer& sequencer, double now, std::vector<std::string>* warnings);

 private:
  const StallOptions options_;
  std::unordered_map<std::string, double> warned_;  // when a request was warned of
};

}  // namespace lockstep
