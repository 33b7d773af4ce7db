#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "core/base/dtype.h"
#include "core/base/status.h"

namespace lockstep {

// How the elements of all ranks become one. Sums are taken in rank order, so that every rank and every run gets the
// same bits. kMean is the sum divided by the number of ranks and is for floating-point types alone; kMin and kMax are
// for all types; on bool kSum and kMax are "or", kProduct and kMin are "and".
enum class ReduceOp : uint8_t { kSum, kMean, kMin, kMax, kProduct };

std::string_view ReduceOpName(ReduceOp op);

// What a collective moves: items of `width` elements of `dtype` each. A row of an embedding table of dimension 16 is
// {kFloat32, 16}; a single id is {kInt64, 1}.
struct Item {
  DType dtype;
  int64_t width = 1;
  int64_t bytes() const { return DTypeSize(dtype) * width; }
};

// Gives the memory for what a collective of unknown output size received. `counts[r]` is the number of items that come
// from rank r; the result holds their sum, in rank order. Called once, on the thread of the collective, on every rank.
using Allocate = std::function<Result<void*>(std::span<const int64_t> counts)>;

// Memory of this process that every rank of the host can read: what is packed into it is reduced and exchanged in
// place, without a copy in and out. Freed when the last owner lets go; owners may be on any thread, and may outlive the
// Communicator. Its bytes are not cleared.
class SharedBuffer {
 public:
  virtual ~SharedBuffer() = default;
  virtual void* data() = 0;
  virtual int64_t bytes() const = 0;
};

// The collectives of a fixed group of ranks (processes).
//
// Contract: every rank makes the same calls in the same order, with the same name, types, reduction and root, and
// (where the call says so) the same counts. Ranks that disagree get FAILED_PRECONDITION that says what each one called,
// on every rank that can see it. Names are for people: they appear in errors.
//
// Errors, on every rank that waits:
//   UNAVAILABLE        a peer died or left: named at once (< 2 s), with the operation.
//   DEADLINE_EXCEEDED  a peer did not arrive within `stall_timeout`: named, with the operation and the time waited.
//   CANCELLED          Abort or Leave was called here or, with the aborting rank's name and reason, Abort on a peer.
// After one of these the communicator is broken: each later call returns that first error at once. Errors of the
// arguments (INVALID_ARGUMENT) are returned before anything is exchanged; a caller that leaves it there has to Decline,
// so that its peers don't wait.
//
// Where `allocate` fails, that rank alone returns its error: the exchange goes on without it, and nothing is broken.
// Disagreement and Decline break nothing either.
//
// Threads: one collective at a time (a lane, see lane.h, serves many callers). Abort, Leave, AllocateShared and the
// getters may be called from any thread at any time.
// Counts may be zero; pointers of empty tensors may be null. In and out may be the same memory where noted, and must
// not overlap otherwise.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string_view backend() const = 0;  // "shm", ...

  // out[i] = in_0[i] op in_1[i] op ...; `count` elements, the same on all ranks. `in` may be `out`. Fastest where both
  // lie in one SharedBuffer of this communicator.
  virtual Status AllReduce(std::string_view name, ReduceOp op, DType dtype, int64_t count, const void* in,
                           void* out) = 0;

  // Reduces sum(counts) elements and leaves counts[rank()] of them, this rank's range in rank order, in `out`.
  virtual Status ReduceScatter(std::string_view name, ReduceOp op, DType dtype, std::span<const int64_t> counts,
                               const void* in, void* out) = 0;

  // Puts the `bytes` bytes of `root` into `data` of every rank.
  virtual Status Broadcast(std::string_view name, int root, int64_t bytes, void* data) = 0;

  // Every rank gets the items of all ranks, in rank order. `count` may differ from rank to rank.
  virtual Status AllGatherV(std::string_view name, Item item, int64_t count, const void* in,
                            const Allocate& allocate) = 0;

  // Rank r gets `send_counts[r]` items, which lie one after another in `in`. What comes in is allocated as soon as its
  // size is known and filled in rank order.
  virtual Status AllToAllV(std::string_view name, Item item, std::span<const int64_t> send_counts, const void* in,
                           const Allocate& allocate) = 0;

  virtual Status Barrier(std::string_view name) = 0;

  // Takes the place of this rank's next collective where it cannot take part (its arguments are bad): every rank's
  // matching collective returns `why`, with this rank's number before it, and the communicator stays usable. Returns
  // `why` here as well. Several ranks may decline the same collective; the lowest rank's reason is returned.
  virtual Status Decline(std::string_view name, const Status& why) = 0;

  // Ends all present and future collectives of this rank with `why` and tells the peers. The first call counts.
  virtual void Abort(const Status& why) = 0;

  // Takes leave in good order: this rank's present and future collectives end with CANCELLED; peers are told that it
  // left when they wait for it, and end undisturbed what it has done its part of. The destructor does it too.
  virtual void Leave() = 0;

  // `bytes` of memory that the peers can read, or null where there is none left: callers fall back to private memory,
  // which every call takes as well.
  virtual std::shared_ptr<SharedBuffer> AllocateShared(int64_t bytes) = 0;
};

}  // namespace lockstep
