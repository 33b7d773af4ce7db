#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/comm/collective/call.h"
#include "core/comm/collective/communicator.h"
#include "core/telemetry/clock.h"
#include "core/telemetry/telemetry.h"

namespace lockstep {

// A communicator that counts the calls of another one, and records them if a timeline runs. It keeps Communicator's
// contract. A call that is not recorded costs a few additions more, and reads no clock.
//
// Calls are numbered from 1 on. All ranks of the communicator make the same calls, so a call has the same number on all
// of them. A call that returns INVALID_ARGUMENT is left out of the count: it was not exchanged, or was declined, on all
// ranks.
//
// The bytes of a call are those of its payload, for R > 1 ranks (one rank exchanges nothing). N is the tensor's size:
//
//   call            sent                             received
//   AllReduce       N                                N
//   ReduceScatter   N                                this rank's range
//   Broadcast       N on the root, else 0            0 on the root, else N
//   AllGatherV      this rank's items                the items of the others
//   AllToAllV       items for the others             items from the others
//   Barrier         0                                0
class ObservedCommunicator final : public Communicator {
 public:
  // `lane` names the calls in counters and the timeline.
  ObservedCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<Telemetry> telemetry,
                       std::string_view lane);
  ~ObservedCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view backend() const override { return inner_->backend(); }
  int num_hosts() const override { return inner_->num_hosts(); }
  std::span<const int> relay_ranks() const override { return inner_->relay_ranks(); }

  Status AllReduce(std::string_view name, ReduceOp op, DType dtype, int64_t count, const void* in, void* out) override;
  Status ReduceScatter(std::string_view name, ReduceOp op, DType dtype, std::span<const int64_t> counts, const void* in,
                       void* out) override;
  Status Broadcast(std::string_view name, int root, int64_t bytes, void* data) override;
  Status AllGatherV(std::string_view name, Item item, int64_t count, const void* in, const Allocate& allocate) override;
  Status AllToAllV(std::string_view name, Item item, std::span<const int64_t> send_counts, const void* in,
                   const Allocate& allocate) override;
  Status Barrier(std::string_view name) override;
  Status Decline(std::string_view name, const Status& why) override;

  void Abort(const Status& why) override { inner_->Abort(why); }
  void Leave(std::string_view how) override { inner_->Leave(how); }
  std::optional<int> Link(int rank) const override { return inner_->Link(rank); }
  Status WhyLinkEnded(int rank) override { return inner_->WhyLinkEnded(rank); }
  std::optional<int> DeathFd(int rank) const override { return inner_->DeathFd(rank); }
  Status StoppedPeer() override { return inner_->StoppedPeer(); }
  std::shared_ptr<SharedBuffer> AllocateShared(int64_t bytes) override { return inner_->AllocateShared(bytes); }
  bool peers_read_shared() const override { return inner_->peers_read_shared(); }
  LaneCounters* counters() override { return counters_.get(); }

 private:
  // Runs a call of the inner communicator. `received`: its bytes, known when it has returned.
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
  void Record(CallKind kind, std::string_view name, int64_t begin_ns, int64_t sent, int64_t received);

  static constexpr int64_t kNotRecorded = -1;

  const std::unique_ptr<Communicator> inner_;
  const std::shared_ptr<Telemetry> telemetry_;
  const int rank_;
  const int size_;
  const std::shared_ptr<LaneCounters> counters_;
  const int lane_;
  const bool exchanges_;  // whether there are other ranks
};

}  // namespace lockstep
