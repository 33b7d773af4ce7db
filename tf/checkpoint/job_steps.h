#pragma once

#include <string>
#include <utility>

#include "core/base/status.h"
#include "core/comm/collective/communicator.h"

namespace lockstep {

// Returns OK on all ranks if `status` is OK on all, otherwise the error of the lowest rank that has one. All ranks call
// it with the same name.
Status AgreeOnStatus(Communicator& communicator, const std::string& name, const Status& status);

// Runs work of a job as a sequence of steps, each on all ranks. A step that fails on one rank fails on all of them, and
// then no rank runs the steps behind it. So the ranks always wait for the same thing.
// ```cpp
// JobSteps steps(communicator, "save");
// steps.Run([&] { return WriteOwnFile(); });            fails on any rank
// steps.RunTogether([&] { return Exchange(); });        a collective: it fails on all ranks or on none
// return steps.status();
// ```
class JobSteps {
 public:
  // `name` is the name of the exchanges; the communicator outlives the object.
  JobSteps(Communicator& communicator, std::string name) : communicator_(communicator), name_(std::move(name)) {}

  // Runs a step that may fail on some ranks, and agrees on its result. If it has collectives of its own, it fails
  // before them on no rank or on all.
  template <typename Step>
  void Run(const Step& step) {
    if (status_.ok()) status_ = AgreeOnStatus(communicator_, name_, step());
  }
  // Runs a step that fails on all ranks or on none.
  template <typename Step>
  void RunTogether(const Step& step) {
    if (status_.ok()) status_ = step();
  }
  // Returns the first error, the same on all ranks.
  const Status& status() const { return status_; }

 private:
  Communicator& communicator_;
  const std::string name_;
  Status status_;
};

}  // namespace lockstep
