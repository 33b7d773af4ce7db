#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "core/base/dtype.h"
#include "core/base/status.h"

// Folder collective/: the interface that all backends implement, and the parts that they share: checks of arguments,
// descriptions of calls, reductions of elements, Adasum.

namespace lockstep {

// How the elements of all ranks become one. Sums are taken in rank order, so that every rank and every run gets the
// same bits. kMean is the sum divided by the number of ranks and is for floating-point types alone; kMin and kMax are
// for all types; on bool kSum and kMax are "or", kProduct and kMin are "and". The values are indices of the table in
// reduce.cc, and are compared between ranks.
enum class ReduceOp : uint8_t { kSum, kMean, kMin, kMax, kProduct };

// "sum", "mean", ...: for messages.
std::string_view ReduceOpName(ReduceOp op);

// What a collective moves: items of `width` elements of `dtype` each. A row of an embedding table of dimension D = 16
// is {kFloat32, 16}; a single id is {kInt64, 1}. Counts of a collective are of items. The same on all ranks.
struct Item {
  DType dtype;
  int64_t width = 1;
  int64_t bytes() const { return DTypeSize(dtype) * width; }
};

// Gives the memory for what a collective of unknown output size received. `counts[r]` is the number of items that come
// from rank r, [R]; the result holds their sum, in rank order, and may be null where that is 0. Called once, on the
// thread of the collective, on every rank, as soon as the sizes are known and before any data has come: the collective
// writes into it until it returns. `counts` is valid during the call. It must not call a collective.
using Allocate = std::function<Result<void*>(std::span<const int64_t> counts)>;

// Memory of this process that every rank of the host can read: what is packed into it is reduced and exchanged in
// place, without a copy in and out. Freed when the last owner lets go; owners may be on any thread, and may outlive the
// Communicator. Its bytes are not cleared.
//
// The memory is the owner's like any other, except in a collective that it was given to: until that has returned on
// this rank nobody may touch it. After a collective that broke the communicator, peers that have not noticed may still
// read it, and write what they reduce: its contents, and those of a buffer that was allocated in its place, are worth
// nothing then.
class SharedBuffer {
 public:
  virtual ~SharedBuffer() = default;
  // The first of `bytes()` bytes, aligned to at least a cache line. Any part of a buffer, at any offset, may be given
  // to a collective; parts that begin at cache lines are fastest.
  virtual void* data() = 0;
  virtual int64_t bytes() const = 0;
};

// The collectives of a fixed group of R ranks (processes).
//
//   float sum = MyLoss();
//   LOCKSTEP_RETURN_IF_ERROR(communicator.AllReduce("loss", ReduceOp::kMean, DType::kFloat32, 1, &sum, &sum));
//
//   std::vector<float> rows;  // what comes in: as many as the peers say
//   LOCKSTEP_RETURN_IF_ERROR(communicator.AllToAllV(
//       "rows", {DType::kFloat32, dim}, send_counts, packed, [&](std::span<const int64_t> counts) -> Result<void*> {
//         rows.resize(std::accumulate(counts.begin(), counts.end(), int64_t{0}) * dim);
//         return static_cast<void*>(rows.data());
//       }));
//
// Contract: every rank makes the same calls in the same order, with the same name, types, reduction and root, and
// (where the call says so) the same counts. Ranks that disagree get FAILED_PRECONDITION that says what each one called,
// on every rank that can see it. Names are for people: they appear in errors.
//
// Errors, on every rank that waits:
//   UNAVAILABLE        a peer died or left: named at once (< 2 s), with the operation. Or a peer of this host, whose
//                      process is stopped, did not arrive within `stopped_timeout`.
//   DEADLINE_EXCEEDED  a peer did not arrive within `stall_timeout`: named, with the operation and the time waited.
//   CANCELLED          Abort or Leave was called here or, with the aborting rank's name and reason, Abort on a peer.
// After one of these the communicator is broken: each later call returns that first error at once, and there is no way
// back but a new communicator on all ranks. A peer that waits when a rank breaks gets that rank's error, with its code,
// unless it sees more itself. What was to be written is undefined after an error. Errors of the arguments
// (INVALID_ARGUMENT) are returned before anything is exchanged; a caller that leaves it there has to Decline, so that
// its peers don't wait.
//
// Where `allocate` fails, that rank alone returns its error: the exchange goes on without it, and nothing is broken.
// Disagreement and Decline break nothing either.
//
// When a call returns OK, this rank has what it was to get, and its `in` may be changed. It does not mean that the
// peers have returned: who needs that adds a Barrier.
//
// Threads: one collective at a time (a lane, see job/lane.h, serves many callers). Abort, Leave, AllocateShared and the
// getters may be called from any thread at any time. All collectives block the calling thread. Processes that are
// forked from a rank may destroy their copy of it and must not call anything else. Counts may be zero; pointers of
// empty tensors may be null, others need only the alignment of their type. In and out may be the same memory where
// noted, and must not overlap otherwise.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // "shm", ...: which implementation this is. The text lives as long as the communicator.
  virtual std::string_view backend() const = 0;
  // How many hosts the ranks are on; 1 where the implementation doesn't tell hosts apart.
  virtual int num_hosts() const { return 1; }
  // For each rank, the one of this rank's host that sends to it what several ranks of this host have for it; a rank of
  // this host is its own. [R], on all ranks alike in kind: empty where there is nothing to share the way, as all ranks
  // are on one host or each is on its own.
  virtual std::span<const int> carriers() const { return {}; }

  // out[i] = in_0[i] op in_1[i] op ...; `count` elements, the same on all ranks. in, out: [count]; `in` may be `out`.
  // Fastest where both lie in one SharedBuffer of this communicator, on all ranks.
  virtual Status AllReduce(std::string_view name, ReduceOp op, DType dtype, int64_t count, const void* in,
                           void* out) = 0;

  // Reduces sum(counts) elements and leaves counts[rank()] of them, this rank's range in rank order, in `out`. counts:
  // [R], the same on all ranks; in: [sum(counts)]; out: [counts[rank()]].
  virtual Status ReduceScatter(std::string_view name, ReduceOp op, DType dtype, std::span<const int64_t> counts,
                               const void* in, void* out) = 0;

  // Puts the `bytes` bytes of `root` into `data` of every rank; both are the same on all ranks. data: [bytes], read on
  // `root` and written on the others.
  virtual Status Broadcast(std::string_view name, int root, int64_t bytes, void* data) = 0;

  // Every rank gets the items of all ranks, in rank order. `count` may differ from rank to rank. in: [count, width];
  // what is allocated: [sum of all ranks' counts, width].
  virtual Status AllGatherV(std::string_view name, Item item, int64_t count, const void* in,
                            const Allocate& allocate) = 0;

  // Rank r gets `send_counts[r]` items, which lie one after another in `in`. What comes in is allocated as soon as its
  // size is known and filled in rank order. send_counts: [R], this rank's own and not known to the peers before; in:
  // [sum(send_counts), width]; what is allocated: [items for this rank, width].
  virtual Status AllToAllV(std::string_view name, Item item, std::span<const int64_t> send_counts, const void* in,
                           const Allocate& allocate) = 0;

  // Returns OK when all ranks have called it. What a rank wrote before it into memory that others read is visible to
  // them after it.
  virtual Status Barrier(std::string_view name) = 0;

  // Takes the place of this rank's next collective where it cannot take part (its arguments are bad): every rank's
  // matching collective returns `why`, with this rank's number before it, and the communicator stays usable. Returns
  // `why` in the same words here as well. Several ranks may decline the same collective; the lowest rank's reason is
  // returned. `name` is that of the collective it stands for; it is not compared. INVALID_ARGUMENT, without an
  // exchange, where `why` is OK.
  virtual Status Decline(std::string_view name, const Status& why) = 0;

  // Ends all present and future collectives of this rank with CANCELLED and the text of `why` (with its code before it
  // where that is another) and tells the peers, whose collectives end likewise. The first call counts, and only where
  // nothing else has broken the communicator before. Does not wait.
  virtual void Abort(const Status& why) = 0;

  // Takes leave in good order: this rank's present and future collectives end with CANCELLED; peers are told that it
  // left when they wait for it, and end undisturbed what it has done its part of. The destructor does it too. `how`
  // says to who waits in vain why it does, as a sentence behind a colon; what is beyond 1 KiB is cut off.
  virtual void Leave(std::string_view how) = 0;
  void Leave() { Leave({}); }

  // A connected socket to `rank` for what ranks say to each other outside of collectives (named/control_links.h),
  // which sends nothing over it itself; -1 for the own rank, and where there is none. Stays the communicator's. One
  // user. Where the implementation learns otherwise that `rank` is lost, it ends its link.
  virtual int Link(int rank) const = 0;
  // Why the link to `rank` has ended, as far as more is known than that it has; else OK. May wait a second for it. Any
  // thread.
  virtual Status WhyLinkEnded(int rank) { return OkStatus(); }
  // What becomes readable when the process of `rank` has ended, even where a child of it keeps its sockets open; -1
  // where there is no such thing. Stays the communicator's.
  virtual int DeathFd(int rank) const { return -1; }

  // UNAVAILABLE that names a rank of this host whose process has been stopped (SIGSTOP, Ctrl-Z) for longer than
  // `stopped_timeout`; OK where none is, or it can't be seen. Collectives see that themselves: this is for who waits
  // for ranks outside of them, and asks some times a second, on the thread that calls collectives.
  virtual Status StoppedPeer() { return OkStatus(); }

  // `bytes` of memory that the peers can read, or null where there is none left: callers fall back to private memory,
  // which every call takes as well. Ranks need not allocate alike, nor at the same time. Does not wait for anybody.
  virtual std::shared_ptr<SharedBuffer> AllocateShared(int64_t bytes) = 0;
  // Whether peers read such memory in place. Where none does, nothing is gained by copying into it what is to be
  // exchanged.
  virtual bool peers_read_shared() const = 0;
};

}  // namespace lockstep
