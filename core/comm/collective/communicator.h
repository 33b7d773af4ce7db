#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/sha256.h"
#include "core/base/status.h"
#include "core/comm/collective/call_kind.h"
#include "core/comm/collective/call_observer.h"
#include "core/telemetry/telemetry.h"

// Folder collective/: the interface that all backends implement, and the parts that they share: checks of arguments,
// descriptions of calls, reductions of elements, Adasum.

namespace lockstep {

struct Call;  // call.h

// The reduction of the elements of all ranks. Sums are taken in rank order, so every rank and every run gets the same
// bits. kMean is the sum divided by the number of ranks, for floating-point types only. kMin and kMax are for all
// types. For bool, kSum and kMax are "or", kProduct and kMin are "and". The values are indices of the table in
// reduce.cc, and are compared between ranks.
enum class ReduceOp : uint8_t { kSum, kMean, kMin, kMax, kProduct };

// Returns "sum", "mean", ..., for messages.
std::string_view ReduceOpName(ReduceOp op);

// The unit of a collective: items of `width` elements of `dtype` each. A row of an embedding table of dimension D = 16
// is {kFloat32, 16}; a single id is {kInt64, 1}. Collectives count items. All ranks pass the same item.
struct Item {
  DType dtype;
  int64_t width = 1;
  int64_t bytes() const { return DTypeSize(dtype) * width; }
};

// Returns the memory for the result of a collective whose output size is not known before. `counts[r]` is the number of
// items from rank r, [R]. The memory holds their sum, in rank order; it may be null if the sum is 0. It is called once
// on every rank, on the thread of the collective, when the sizes are known and before any data has come. The collective
// writes into the memory until it returns. `counts` is valid during the call. It must not call a collective.
using Allocate = std::function<Result<void*>(std::span<const int64_t> counts)>;

// Memory of this process that every rank of the host can read. Tensors that are packed into it are reduced and
// exchanged in place, without a copy in and out. It is freed with its last owner. Owners may be on any thread, and may
// outlive the Communicator. Its bytes are not cleared.
//
// The owner may use the memory freely, except during a collective that got it: until the collective has returned on
// this rank, no code may touch it. After a collective that broke the communicator, peers that have not noticed may
// still read it, and write reduced data to it. The contents of the buffer, and of a buffer allocated in its place, are
// then undefined.
class SharedBuffer {
 public:
  virtual ~SharedBuffer() = default;
  // Returns the first of `bytes()` bytes, aligned to at least a cache line. A collective accepts any part of a buffer,
  // at any offset; parts that begin at cache lines are fastest.
  virtual void* data() = 0;
  virtual int64_t bytes() const = 0;
};

// The collectives of a fixed group of R ranks (processes).
// ```cpp
// float sum = MyLoss();
// LOCKSTEP_RETURN_IF_ERROR(communicator.AllReduce("loss", ReduceOp::kMean, DType::kFloat32, 1, &sum, &sum));
//
// std::vector<float> rows;  // the received rows; the peers determine their number
// LOCKSTEP_RETURN_IF_ERROR(communicator.AllToAllV(
//     "rows", {DType::kFloat32, dim}, send_counts, packed, [&](std::span<const int64_t> counts) -> Result<void*> {
//       rows.resize(std::accumulate(counts.begin(), counts.end(), int64_t{0}) * dim);
//       return static_cast<void*>(rows.data());
//     }));
// ```
// Contract: every rank makes the same calls in the same order, with the same name, types, reduction and root, and
// (where stated) the same counts. If ranks disagree, every rank that can see it gets FAILED_PRECONDITION that
// names the call of each rank. Names are for people: they appear in errors.
//
// Errors, on every rank that waits:
//
//   UNAVAILABLE        A peer died or left. It is named at once (< 2 s), with the operation. Or the process of a peer
//                      on this host is stopped, and did not arrive within `stopped_timeout`.
//   DEADLINE_EXCEEDED  A peer did not arrive within `stall_timeout`. It is named, with the operation and the time.
//   CANCELLED          Abort or Leave was called here. Or a peer called Abort; its rank and its reason are named.
//
// After one of these errors the communicator is broken: each later call returns that first error at once, and the only
// way back is a new communicator on all ranks. If a rank breaks while a peer waits for it, the peer gets that rank's
// error, with its code, unless it knows more itself. Outputs are undefined after an error. Errors of the arguments
// (INVALID_ARGUMENT) are returned before anything is exchanged. A caller that makes no other call instead has to
// Decline, so that its peers do not wait.
//
// If `allocate` fails, only that rank returns its error: the exchange continues without it, and nothing is broken.
// Disagreement and Decline break nothing either.
//
// When a call returns OK, this rank has its result, and its `in` may be changed. The peers may not have returned yet; a
// caller that needs that adds a Barrier.
//
// Threads: one collective at a time (a lane, see job/lane.h, serves many callers). Any thread may call Abort, End,
// Leave, AllocateShared, StoppedPeer and the getters at any time. All collectives block the calling thread. Processes
// that are forked from a rank may destroy their copy of it and must not call anything else. Counts may be zero.
// Pointers of empty tensors may be null; others need only the alignment of their type. In and out may be the same
// memory where noted, and must not overlap otherwise.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Returns the implementation: "shm", ... The text lives as long as the communicator.
  virtual std::string_view backend() const = 0;
  // Returns the number of hosts of the ranks, or 1 if the implementation does not tell hosts apart.
  virtual int num_hosts() const { return 1; }
  // Returns the relay rank for each rank: the rank of this host that sends to it the common data of this host's ranks.
  // A rank of this host is its own relay rank. It has R entries on all ranks, or none on all ranks: if all ranks are on
  // one host or each is on its own, there is nothing to relay.
  virtual std::span<const int> relay_ranks() const { return {}; }

  // Sets out[i] = in_0[i] op in_1[i] op ...; `count` elements, equal on all ranks. in, out: [count]; `in` may be `out`.
  // It is fastest if both lie in one SharedBuffer of this communicator, on all ranks.
  virtual Status AllReduce(std::string_view name, ReduceOp op, DType dtype, int64_t count, const void* in,
                           void* out) = 0;

  // Reduces sum(counts) elements and leaves counts[rank()] of them, this rank's range in rank order, in `out`. counts:
  // [R], the same on all ranks; in: [sum(counts)]; out: [counts[rank()]].
  virtual Status ReduceScatter(std::string_view name, ReduceOp op, DType dtype, std::span<const int64_t> counts,
                               const void* in, void* out) = 0;

  // Copies the `bytes` bytes of `root` into `data` of every rank; both are equal on all ranks. data: [bytes], read on
  // `root` and written on the others.
  virtual Status Broadcast(std::string_view name, int root, int64_t bytes, void* data) = 0;

  // Gives every rank the items of all ranks, in rank order. `count` may differ from rank to rank. in: [count, width];
  // the allocated memory: [sum of all ranks' counts, width].
  virtual Status AllGatherV(std::string_view name, Item item, int64_t count, const void* in,
                            const Allocate& allocate) = 0;

  // Sends `send_counts[r]` items to rank r, which lie one after another in `in`. Memory for the received items is
  // allocated when their number is known, and filled in rank order. `send_counts`, [R], is this rank's own; the peers
  // do not know it before. `in` is [sum(send_counts), width]. The allocated memory is [items for this rank, width].
  virtual Status AllToAllV(std::string_view name, Item item, std::span<const int64_t> send_counts, const void* in,
                           const Allocate& allocate) = 0;

  // Returns OK when all ranks have called it. Writes of a rank before it, into memory that others read, are visible to
  // them after it.
  virtual Status Barrier(std::string_view name) = 0;

  // Replaces this rank's next collective if it cannot take part (its arguments are bad). Every rank's matching
  // collective returns `why`, with this rank's number before it, and the communicator stays usable. It returns `why`
  // with the same text here as well. Several ranks may decline the same collective; the lowest rank's reason is
  // returned. `name` is the replaced collective's; it is not compared. INVALID_ARGUMENT, without an exchange, if `why`
  // is OK.
  virtual Status Decline(std::string_view name, const Status& why) = 0;

  // The control plane of collectives whose data moves in another way (core/device/comm). Compares `call` as the
  // collective of its kind does, with the same errors and names, and gives every rank the `values` of all, [R, values]
  // (one zero for each rank if there are none). All ranks pass equally many values, which are like counts: not
  // negative, and not more items than fit into a machine. UNIMPLEMENTED if the implementation has none.
  virtual Result<std::vector<int64_t>> Compare(const Call& call, std::span<const int64_t> values);

  // Returns whether a collective has ended this rank for good, or Abort, End or Leave was called. Any thread.
  virtual bool broken() const { return false; }

  // Ends this rank as an error of its own collectives does: these return `error` from now on, and peers that wait for
  // this rank get it, with its code. Only the first end has an effect. Any thread; does not wait.
  virtual void End(const Status& error) { Abort(error); }

  // Ends all present and future collectives of this rank with CANCELLED and the text of `why` (with its code before it,
  // if it is another code). It notifies the peers, whose collectives end in the same way. Only the first call has an
  // effect, and only if the communicator is not broken yet. Does not wait.
  virtual void Abort(const Status& why) = 0;

  // Leaves in good order: this rank's present and future collectives end with CANCELLED. Peers that wait for it learn
  // that it left; collectives for which it has done its part end normally there. The destructor does it too. `how`
  // tells waiting peers how it left, as a sentence after a colon; text beyond 1 KiB is cut off.
  virtual void Leave(std::string_view how) = 0;
  void Leave() { Leave({}); }

  // Returns a connected socket to `rank` for communication outside of collectives (named/control_links.h). The
  // communicator itself sends nothing over it. Returns no value for this rank, or without a socket. The communicator
  // owns it. It has one user. If the implementation learns in another way that `rank` is lost, it ends its link.
  virtual std::optional<int> Link(int rank) const = 0;
  // Returns the key for proofs of what is sent over that link, known only to the ranks of the job. No value if the link
  // stays inside of the machine, where the kernel transfers it.
  virtual std::optional<Digest> LinkKey(int rank) const { return std::nullopt; }
  // Returns the reason why the link to `rank` has ended, if more is known than its end; else OK. It may wait one
  // second. Any thread.
  virtual Status WhyLinkEnded(int rank) { return OkStatus(); }
  // Returns a descriptor that becomes readable when the process of `rank` has ended, even if a child keeps its sockets
  // open. Returns no value if that process cannot be seen. The communicator owns it.
  virtual std::optional<int> DeathFd(int rank) const { return std::nullopt; }

  // Returns UNAVAILABLE with the name of a rank of this host whose process has been stopped (SIGSTOP, Ctrl-Z) for
  // longer than `stopped_timeout`. Returns OK if there is none, or it cannot be seen. Collectives check this
  // themselves. Code that waits for ranks outside of them calls it some times per second, on any thread.
  virtual Status StoppedPeer() { return OkStatus(); }

  // Returns `bytes` of memory that the peers can read, or null if none is left. Callers then use private memory, which
  // every call accepts as well. Ranks need not allocate alike, nor at the same time. Does not wait for other ranks.
  virtual std::shared_ptr<SharedBuffer> AllocateShared(int64_t bytes) = 0;
  // Returns whether peers read such memory in place. If not, nothing is gained by copying data into it before an
  // exchange.
  virtual bool peers_read_shared() const = 0;

  // Counts the calls from now on, and records them in the timeline of `telemetry`, as the lane of this name. To be
  // called once, before the first call. Calls of communicators that this one consists of are not counted.
  void ObserveCalls(std::shared_ptr<Telemetry> telemetry, std::string_view lane);
  // Returns the counters of this rank's calls; null if they are not counted.
  LaneCounters* counters() { return observer_ ? &observer_->counters() : nullptr; }
  // Adds the waits of the following calls for ranks that have not begun them to `counters`, which has to outlive the
  // communicator, and their messages to other hosts. An implementation that does not know its waits does nothing.
  virtual void CountWaits(LaneCounters* counters) {}

 protected:
  // Runs a collective's work, and counts it if calls are observed. `received` is read at the end.
  template <typename Work>
  Status Observe(CallKind kind, std::string_view name, int64_t sent, const int64_t& received, const Work& work) {
    return observer_ ? observer_->Run(kind, name, sent, received, work) : work();
  }

  // The bytes that a call receives from other ranks, which are known when memory for them is allocated.
  class ReceivedBytes {
   public:
    ReceivedBytes(const Allocate& allocate, int rank, Item item) : allocate_(allocate), rank_(rank), item_(item) {}
    // Returns an Allocate that notes the bytes and calls the given one. This object has to outlive it.
    Allocate Counting();
    const int64_t& bytes() const { return bytes_; }

   private:
    const Allocate& allocate_;
    const int rank_;
    const Item item_;
    int64_t bytes_ = 0;
  };

 private:
  std::optional<CallObserver> observer_;
};

}  // namespace lockstep
