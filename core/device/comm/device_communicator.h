#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/comm/collective/communicator.h"
#include "core/comm/named/message_links.h"
#include "core/device/comm/nccl_api.h"
#include "core/device/comm/ticket.h"
#include "core/device/library.h"

// Folder device/comm/: collectives of tensors in the memory of devices, in the order of streams.
// ```
//   create_device_communicator.h   chooses the backend: nccl_communicator.h or staged_communicator.h
//   device_communicator.h          the interface of both
//   progress.h                     the thread that sees calls end; it watches the peers by peer_watch.h
//   nccl_api.h                     NCCL's functions, loaded at run time
//   ticket.h                       a call that was put into a stream
// ```

namespace lockstep::device {

// How a rank's device takes part.
struct CommOptions {
  const Library* library = nullptr;  // outlives the communicator
  int device = 0;                    // the number of this rank's device in the library
  // nccl: NCCL between devices of one or several hosts. staged: copies over the host's communicator, for several ranks
  // on one device, and for hosts without NCCL.
  std::string backend = "nccl";
  NcclPlace nccl;  // where to find libnccl.so.2
  // Lets NCCL take sums, means, minima, maxima and products itself. Its order of a sum depends on the number of ranks
  // and on the network, so the bits differ from the CPU's. By default sums are taken in rank order.
  bool native_sums = false;
  // The streams with an NCCL communicator each (comm_pool_capacity). Calls take turns, so that several run at once.
  int channels = 1;
  double stall_timeout_s = 300;  // how late a rank's device may be in a collective before the job ends
  double start_timeout_s = 60;   // how long NCCL may take to connect
  // Links between the ranks, if something else uses the links of the host's communicator: a named lane, which lends its
  // own. They outlive the communicator. Null: the host's.
  MessageLinks* links = nullptr;
  // Returns memory of the device for parts of sums, which no work uses any more. Null: the library's. TensorFlow's
  // allocator takes nearly all memory of a device, so operations pass one that asks it.
  std::function<Result<std::shared_ptr<void>>(int64_t bytes)> allocate;
};

// The collectives of a fixed group of R ranks, each with a device, for tensors in the memory of these devices.
// ```cpp
// // On the lane's thread:
// Result<Ticket> ticket = communicator.AllReduce("grad", ReduceOp::kMean, DType::kFloat32, n, in, out, compute);
// if (ticket.ok()) status = ticket->LetWait(compute);    // work that is put into `compute` now reads the result
// done(status);                                          // and no thread has waited for a device
// ```
// A call is put into a stream of the communicator. It begins when the work that is in `after` at the time of the call
// has run, and returns a Ticket before it has ended. `after` is null if the data is there already. Memory that is
// passed has to live until the ticket has passed.
//
// The contract is Communicator's (core/comm/collective/communicator.h): the same calls on all ranks, the same results
// bit for bit unless `native_sums` is set, the same errors. The host's communicator is the control plane. The calling
// thread compares the calls over it before it puts anything into the stream, so it waits for the peers' threads to make
// the same call; it does not wait for any device. With 'staged' it does not wait at all: a thread of the communicator
// waits, and errors come with the ticket.
//
// Errors of a call are returned by it, or by its ticket if the call was put into the stream. A thread watches the
// peers while calls run. If one died, left, is stopped or late, or has given up, it ends NCCL's kernels, and all
// tickets and calls get the error that names the rank, the call and the time. From then on the communicator is broken,
// and the host's communicator as well. Streams that wait for a ticket go on after an error; the data is undefined then,
// so a program checks the ticket's status before it uses results for good (Ticket::Then).
//
// The host's communicator has to outlive this one. No other code makes its collectives meanwhile, except by this
// object's methods or after ReleaseHost; none uses its links, unless CommOptions has others. Threads: one call at a
// time, as for Communicator; any thread may call Abort, Leave and the getters.
class DeviceCommunicator {
 public:
  // Waits until the calls have ended, and leaves.
  virtual ~DeviceCommunicator() = default;

  int rank() const { return host_.rank(); }
  int size() const { return host_.size(); }
  // Returns "nccl" or "staged".
  virtual std::string_view backend() const = 0;
  // Returns the error that has ended this communicator; OK while there is none.
  virtual Status broken() const = 0;

  // in, out: [count]; `in` may be `out`.
  virtual Result<Ticket> AllReduce(std::string_view name, ReduceOp op, DType dtype, int64_t count, const void* in,
                                   void* out, Stream after) = 0;
  // counts: [R], the same on all ranks; in: [sum(counts)]; out: [counts[rank()]].
  virtual Result<Ticket> ReduceScatter(std::string_view name, ReduceOp op, DType dtype, std::span<const int64_t> counts,
                                       const void* in, void* out, Stream after) = 0;
  virtual Result<Ticket> Broadcast(std::string_view name, int root, int64_t bytes, void* data, Stream after) = 0;

  // Exchange the counts of the next AllGatherV or AllToAllV of this name, over the host's communicator: collectives
  // that wait for all ranks. A caller that knows the counts leaves them out, on all ranks. GatherCounts returns the
  // number of items of each rank, [R]; ExchangeCounts the numbers that come from each rank, [R].
  Result<std::vector<int64_t>> GatherCounts(std::string_view name, Item item, int64_t count);
  Result<std::vector<int64_t>> ExchangeCounts(std::string_view name, Item item, std::span<const int64_t> send_counts);
  // counts: [R], the same on all ranks. in: [counts[rank()], width]; out: [sum(counts), width].
  // A rank that has no memory for what it receives passes null for `out`: it takes part without receiving, and the
  // others get their items.
  virtual Result<Ticket> AllGatherV(std::string_view name, Item item, std::span<const int64_t> counts, const void* in,
                                    void* out, Stream after) = 0;
  // send_counts, receive_counts: [R], of this rank; the peers' fit to them. in: [sum(send_counts), width];
  // out: [sum(receive_counts), width], or null as in AllGatherV.
  virtual Result<Ticket> AllToAllV(std::string_view name, Item item, std::span<const int64_t> send_counts,
                                   std::span<const int64_t> receive_counts, const void* in, void* out,
                                   Stream after) = 0;
  // AdasumAllReduce (core/comm/collective/adasum.h) of a list of tensors. The dot products of each of its log2 R rounds
  // travel over the host's communicator, so the calling thread waits for the devices.
  virtual Result<Ticket> Adasum(std::string_view name, DType dtype, std::span<const int64_t> counts_of_tensors,
                                const void* in, void* out, Stream after) = 0;

  // As in Communicator, over the host's. They wait for no stream. An Abort after Leave ends the calls of this rank.
  virtual Status Barrier(std::string_view name) = 0;
  virtual Status Decline(std::string_view name, const Status& why) = 0;
  virtual void Abort(const Status& why) = 0;
  virtual void Leave(std::string_view how) = 0;

  // Waits until the calls so far use the host's communicator no more. Then the caller may make collectives of it, up to
  // its next call here. Ranks do so at the same place in their order of calls. It waits for the device if the backend
  // is 'staged', and for nothing if it is 'nccl'.
  virtual void ReleaseHost() = 0;

 protected:
  explicit DeviceCommunicator(Communicator& host) : host_(host) {}

  // Communicator::Compare over the host's communicator. An error that broke it breaks this communicator.
  virtual Result<std::vector<int64_t>> Compare(const Call& call, std::span<const int64_t> values) = 0;

  // Returns the call of an exchange of items, of which each rank has its own number.
  static Call ExchangeCall(CallKind kind, std::string_view name, Item item);
  static Status CheckWidth(std::string_view call, std::string_view name, Item item);

  Communicator& host_;
};

}  // namespace lockstep::device
