#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/comm/collective/adasum_plan.h"
#include "core/comm/collective/call.h"
#include "core/device/comm/device_communicator.h"
#include "core/device/comm/nccl_api.h"
#include "core/device/comm/progress.h"

namespace lockstep::device {

// Threads that end NCCL's communicators. Such a thread may wait for the device without end, so nobody joins it.
class Endings {
 public:
  // Calls `end` on a new thread.
  void Start(std::function<void()> end);
  // Waits until all calls have returned, but not longer than this.
  void Await(double seconds);

 private:
  struct State {
    Mutex mutex;
    CondVar changed;
    int running LOCKSTEP_GUARDED_BY(mutex) = 0;
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

// The backend 'nccl', for R ranks. Every call has these steps.
// ```
//   1. memory        scratch of the device and events; a rank that has none declines the call
//   2. comparison    Communicator::Compare over the host: all ranks make the same call, and have memory
//   3. stream        the channel's stream waits for the caller's, and gets the kernels below
//   4. end           an event, for which Progress looks
// ```
// Step 3 moves some bytes from each rank (docs/gpu.md). A tensor has N bytes.
// ```
//   AllReduce        up to kSmallBytes: N, one group of sends and an ordered sum of everything
//                    larger: 2 (R-1)/R N: parts to their ranks, an ordered sum of the own part, and the sums to all
//   ReduceScatter    (R-1)/R N: parts to their ranks, and an ordered sum
//   Broadcast        ncclBroadcast
//   AllGatherV       the own items to all; AllToAllV: each item once
// ```
// An ordered sum is Library::reduce, which has the CPU's bits. With native_sums the first two are ncclAllReduce and,
// if all counts are equal, ncclReduceScatter, for the types that NCCL reduces.
//
// NCCL's communicators are made with blocking = 0. A function that has to connect to a peer first returns kInProgress.
// Enqueue then looks until it is done, the communicator is broken, or time is over. So no call of NCCL holds
// `nccl_mutex_` while a peer is missing, and Break can always abort.
class NcclCommunicator final : public DeviceCommunicator {
 public:
  static Result<std::unique_ptr<DeviceCommunicator>> Create(const CommOptions& options, Communicator& host);
  ~NcclCommunicator() override;

  std::string_view backend() const override { return "nccl"; }
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
  void ReleaseHost() override {}  // calls use it before they return

 private:
  // A stream with an NCCL communicator and memory for parts of sums. The memory grows; what is too small is kept until
  // the end, because earlier work may use it, and freeing it would wait for the device.
  struct Channel {
    nccl::Comm comm = nullptr;  // null when it is aborted, and for one rank
    Stream stream = nullptr;
    std::string operation = {};  // the call that is put into it, for messages
    std::shared_ptr<void> scratch;
    int64_t scratch_bytes = 0;
    std::vector<std::shared_ptr<void>> outgrown;
  };
  // A call that the ranks have agreed to: its channel, and the values that they passed, [R, values].
  struct Turn {
    Channel* channel;
    std::shared_ptr<PendingCall> call;
    std::vector<int64_t> values;
  };
  // A message of a group: `bytes` bytes to or from a rank.
  struct Message {
    int peer;
    const void* send;  // null: it is received
    void* receive;
    int64_t bytes;
  };

  NcclCommunicator(const CommOptions& options, Communicator& host, std::shared_ptr<const nccl::Api> api);
  // The parts of Create.
  Status Connect(Status loaded);
  Status ConnectChannel(Channel& channel);
  // Waits until NCCL has connected what the channel needs.
  Status AwaitConnection(Channel& channel, double seconds);
  Status StateOf(const Channel& channel, nccl::Code* state);

  // Makes steps 1 to 3 up to the wait for `after`. Errors that break the communicator have done so.
  Result<Turn> Begin(const Call& call, std::span<const int64_t> values, int64_t scratch_bytes, Stream after);
  Result<std::shared_ptr<PendingCall>> Prepare(const Call& call, Channel& channel, int64_t scratch_bytes);
  // Makes step 4, or breaks the communicator if `enqueued` is an error: the peers wait for this rank then.
  Result<Ticket> End(Turn turn, const Status& enqueued);
  Result<std::vector<int64_t>> Compare(const Call& call, std::span<const int64_t> values) override;
  Status CheckHost(const Status& status);

  // Put work into the channel's stream.
  Status Copy(Channel& channel, void* to, const void* from, int64_t bytes);
  // Runs `work`, which calls NCCL's functions, as one group.
  Status Enqueue(Channel& channel, const std::function<nccl::Code(nccl::Comm)>& work);
  Status Exchange(Channel& channel, std::span<const Message> messages);
  Status ReduceSmall(Channel& channel, ReduceOp op, DType dtype, int64_t count, const void* in, void* out);
  Status ReduceParts(Channel& channel, ReduceOp op, DType dtype, std::span<const int64_t> counts, const void* in,
                     void* own);
  Status GatherParts(Channel& channel, std::span<const int64_t> counts, int64_t width, void* data);
  int64_t PartsBytes(std::span<const int64_t> counts, int64_t width) const;
  std::vector<int64_t> SharesOf(int64_t count, int64_t width) const;
  // Implements AllGatherV and AllToAllV: sends[r] items from in + offsets[r], in item units.
  Status MoveItems(Turn& turn, int64_t item_bytes, std::span<const int64_t> send_offsets,
                   std::span<const int64_t> sends, std::span<const int64_t> receives, const void* in, void* out);
  bool IsNative(DType dtype) const;

  // nccl_adasum.cc
  Status CombineRows(Turn& turn, const std::string& name, const adasum::Plan& plan, DType dtype);
  Status CombineNeighbours(Turn& turn, const std::string& name, const adasum::Plan& plan, int stride, DType dtype,
                           char* rows, Products* products);
  // Waits for the work that is in the turn's stream.
  Status AwaitStream(Turn& turn);

  Status NcclError(nccl::Code code, const char* what) const;
  Status UseDevice() const;
  // Ends everything with an error of NCCL in a call. It may be the first sign of a lost rank, so the watch gets a
  // moment to name one; then that is the error.
  Status BreakFor(const Status& error, const std::string& operation);
  // Ends everything with `why`, once, and returns the first error. for_peers: what they get; OK: they know it.
  Status Break(const Status& why);
  Status Break(const Status& why, const Status& for_peers, bool is_abort);
  // Ends NCCL's communicators, each on a thread of its own.
  void EndNccl(bool is_abort);

  const CommOptions options_;
  const Library& library_;
  const std::shared_ptr<const nccl::Api> api_;
  std::vector<Channel> channels_;
  size_t next_channel_ = 0;
  Mutex nccl_mutex_;  // held during NCCL's functions, and while communicators are aborted
  std::atomic<bool> is_broken_{false};
  mutable Mutex mutex_;
  Status broken_ LOCKSTEP_GUARDED_BY(mutex_);
  bool has_left_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  Endings endings_;
  std::unique_ptr<Progress> progress_;  // its thread uses the others
};

}  // namespace lockstep::device
