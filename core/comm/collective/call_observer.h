#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "core/base/status.h"
#include "core/comm/collective/call_kind.h"
#include "core/telemetry/clock.h"
#include "core/telemetry/telemetry.h"

namespace lockstep {

// Counts the calls of one communicator, and records them if a timeline runs. A call that is not recorded costs a few
// additions more, and reads no clock.
//
// Calls are numbered from 1 on. All ranks of the communicator make the same calls, so a call has the same number on all
// of them. A call that returns INVALID_ARGUMENT is left out of the count: it was not exchanged, or was declined, on all
// ranks.
//
// The bytes of a call count only its payload, for R > 1 ranks (one rank exchanges nothing). N is the tensor's size:
//
//   call            sent                             received
//   AllReduce       N                                N
//   ReduceScatter   N                                this rank's range
//   Broadcast       N on the root, else 0            0 on the root, else N
//   AllGatherV      this rank's items                the items of the others
//   AllToAllV       items for the others             items from the others
//   Barrier         0                                0
class CallObserver {
 public:
  // `lane` names the calls in counters and the timeline.
  CallObserver(std::shared_ptr<Telemetry> telemetry, std::string_view lane, int rank, int size);
  // Closes the lane.
  ~CallObserver();
  CallObserver(const CallObserver&) = delete;
  CallObserver& operator=(const CallObserver&) = delete;

  LaneCounters& counters() { return *counters_; }

  // Runs `work`, which makes a call and returns its Status. `received` is read when it has returned.
  template <typename Work>
  Status Run(CallKind kind, std::string_view name, int64_t sent, const int64_t& received, const Work& work) {
    const int64_t begin_ns = telemetry_->recording() ? SteadyNs() : kNotRecorded;
    Status status = work();
    if (status.code() != StatusCode::kInvalidArgument) [[likely]] {
      const bool exchanged = exchanges_ && status.ok();
      counters_->AddCall(exchanged ? sent : 0, exchanged ? received : 0);
      if (begin_ns != kNotRecorded) [[unlikely]]
        Record(kind, name, begin_ns, exchanged ? sent : 0, exchanged ? received : 0);
    }
    return status;
  }

 private:
  static constexpr int64_t kNotRecorded = -1;

  void Record(CallKind kind, std::string_view name, int64_t begin_ns, int64_t sent, int64_t received);

  const std::shared_ptr<Telemetry> telemetry_;
  const std::shared_ptr<LaneCounters> counters_;
  const int lane_;
  const bool exchanges_;  // whether there are other ranks
};

}  // namespace lockstep
