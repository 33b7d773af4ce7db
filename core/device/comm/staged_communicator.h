#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/comm/job/lane.h"
#include "core/device/comm/device_communicator.h"
#include "core/device/comm/progress.h"

namespace lockstep::device {

// The backend 'staged': the host's communicator moves the data, from and to pinned memory. It is for several ranks on
// one device, which NCCL refuses, and for hosts without NCCL. A call puts this into the stream at once:
// ```
//   wait for `after`  |  copy to the host  |  gate  |  copy to the device  |  the ticket's event
// ```
// A thread, the lane, waits for the first copy, makes the host's collective, and opens the gate, which until then holds
// the stream. So the collectives of the host begin when the devices are ready, and all faults are theirs: lost ranks,
// late devices and different calls. Their errors come with the ticket.
//
// The gate is the number of the last call whose data may be copied back, in pinned memory, for which the stream waits
// (Library::wait_value). A function of the host in the stream would not do: CUDA may run such functions of all streams
// on one thread, and two communicators would wait for each other.
class StagedCommunicator final : public DeviceCommunicator {
 public:
  static Result<std::unique_ptr<DeviceCommunicator>> Create(const CommOptions& options, Communicator& host);
  ~StagedCommunicator() override;

  std::string_view backend() const override { return "staged"; }
  Status broken() const override;

  Result<Ticket> AllReduce(std::string_view name, ReduceOp op, DType dtype, int64_t count, const void* in, void* out,
                           Stream after) override;
  Result<Ticket> ReduceScatter(std::string_view name, ReduceOp op, DType dtype, std::span<const int64_t> counts,
                               const void* in, void* out, Stream after) override;
  Result<Ticket> Broadcast(std::string_view name, int root, int64_t bytes, void* data, Stream after) override;
  Result<Ticket> AllGatherV(std::string_view name, Item item, std::span<const int64_t> counts, const void* in,
                            void* out, Stream after) override;
  Result<Ticket> AllToAllV(std::string_view name, Item item, std::span<const int64_t> send_counts,
                           std::span<const int64_t> receive_counts, const void* in, void* out, Stream after) override;
  Result<Ticket> Adasum(std::string_view name, DType dtype, std::span<const int64_t> counts_of_tensors, const void* in,
                        void* out, Stream after) override;
  Status Barrier(std::string_view name) override;
  Status Decline(std::string_view name, const Status& why) override;
  void Abort(const Status& why) override;
  void Leave(std::string_view how) override;
  void ReleaseHost() override;

 private:
  // Pinned memory, which goes back to the communicator's list. The list outlives the communicator with its last user.
  struct Pool;
  using Pinned = std::shared_ptr<void>;

  // A call: the bytes that are copied to the host and back, and the host's collective on the copies.
  struct Work {
    CallKind kind;
    std::string_view name;
    const void* in;
    int64_t in_bytes;
    void* out;
    int64_t out_bytes;
    bool in_place;  // the collective writes its result over its input
    std::function<Status(std::string_view name, const void* in, void* out)> run;
  };

  StagedCommunicator(const CommOptions& options, Communicator& host);
  Result<Ticket> Enqueue(Work work, Stream after);
  // The part of Enqueue that can fail before anything is in the stream.
  Result<Pinned> Pin(int64_t bytes);
  // Runs a collective of the host on the lane, and waits for it.
  Status OnLane(const std::function<Status()>& collective);
  Result<std::vector<int64_t>> Compare(const Call& call, std::span<const int64_t> values) override;
  Status CheckHost(const Status& status);
  Status MakeGate();
  Status AwaitCopy(const PendingCall& call) const;
  Status Break(const Status& why);

  const CommOptions options_;
  const Library& library_;
  const std::shared_ptr<Pool> pool_;
  Stream stream_ = nullptr;
  uint32_t num_calls_ = 0;
  uint32_t* gate_ = nullptr;  // pinned; read by the device
  std::atomic<bool> is_broken_{false};
  mutable Mutex mutex_;
  Status broken_ LOCKSTEP_GUARDED_BY(mutex_);
  std::unique_ptr<Progress> progress_;
  std::unique_ptr<Lane> lane_;  // ends before the others, which it uses
};

}  // namespace lockstep::device
