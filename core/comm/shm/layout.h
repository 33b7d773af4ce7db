#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>

#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/comm/communicator.h"

// What lies where in the shared memory of a job. One segment, made by rank 0 and mapped by all:
//
//   +-----------+---------------+----------------+-----------------+------------------+------+-----------+
//   | RankBlock | slots         | outboxes       | results         | heap of rank 0   | ...  | heap R-1  |
//   | x R       | R x 2 x kSlot | R x D x kChunk | R x D x kChunk  | heap_bytes       |      |           |
//   +-----------+---------------+----------------+-----------------+------------------+------+-----------+
//
//   RankBlock  what a rank says to the others; written by that rank alone (except for `sleepers`)
//   slots      small contributions, whole; two per rank, for even and odd calls
//   outboxes   pieces of large contributions on their way to the peers; D = kDepth pieces in flight
//   results    reduced pieces on their way to the peers
//   heaps      SharedBuffers: read, and in AllReduce written, by all
//
// How it is kept free of races, in short: a rank announces what it did by raising its `progress`; every call begins
// with all ranks waiting for each other's announcement of it. So when a rank writes for call n + 2, every rank has
// ended call n: whatever belongs to a call needs two copies, chosen by the parity of the call's number.
namespace lockstep::shm {

inline constexpr int kMaxRanks = 16;
inline constexpr uint32_t kLayoutVersion = 1;
inline constexpr int64_t kPageBytes = 4096;
inline constexpr int64_t kCacheLineBytes = 64;

// Contributions up to this size travel in the flag's own cache line.
inline constexpr int64_t kInlineBytes = 16;
// Contributions up to this size travel whole, in a slot.
inline constexpr int64_t kSlotBytes = 16 << 10;
// Large private contributions travel in pieces of this size, kDepth of them in flight (see staging.h).
inline constexpr int64_t kChunkBytes = 256 << 10;
inline constexpr int kDepth = 3;

// What kind of end a rank has come to.
enum class RankState : uint32_t {
  kRunning,
  kLeft,     // its communicator was destroyed in good order
  kAborted,  // its user called Abort
  kBroken,   // a call of it failed; the error is in LastWords
};

enum class CallKind : uint8_t { kAllReduce, kReduceScatter, kBroadcast, kAllGatherV, kAllToAllV, kBarrier, kDecline };

// One rank's announcement of one call, beside its progress in one cache line, so that a small call costs one line per
// peer. `payload` is the contribution itself where it is small enough, or says where it is.
struct Announcement {
  uint64_t fingerprint;
  alignas(8) unsigned char payload[kInlineBytes];
};

struct alignas(kCacheLineBytes) FlagLine {
  std::atomic<uint32_t> progress;  // number of announcements so far; the futex that peers sleep on
  std::atomic<uint32_t> sleepers;  // peers that sleep on it
  std::atomic<RankState> state;
  uint32_t unused;
  Announcement announcements[2];  // by parity of the call
};
static_assert(sizeof(FlagLine) == kCacheLineBytes);

// What a rank called, in full: read for the text of an error, and by AllToAllV for the counts.
struct alignas(2 * kCacheLineBytes) CallRecord {
  CallKind kind;
  DType dtype;
  ReduceOp op;
  StatusCode why_code;  // of a Decline
  int32_t root;
  int64_t number;  // of the call
  int64_t width;
  int64_t count;
  int64_t counts[kMaxRanks];
  char name[128];  // cut off where longer
  char why[512];   // of a Decline
};

// Why a rank takes no further part. Written before its state is.
struct LastWords {
  StatusCode code;
  char text[1024];
};

struct alignas(kPageBytes) RankBlock {
  FlagLine flag;
  alignas(2 * kCacheLineBytes) CallRecord calls[2];  // by parity of the call
  LastWords last_words;
  cpu_set_t cpus;  // on which the rank may run, when it attached
};

// Offsets in the segment, computed alike on every rank.
struct Layout {
  int size;
  int64_t heap_bytes;  // per rank

  int64_t Slots() const { return size * int64_t{sizeof(RankBlock)}; }
  int64_t Outboxes() const { return Slots() + size * 2 * kSlotBytes; }
  int64_t Results() const { return Outboxes() + size * kDepth * kChunkBytes; }
  int64_t Heaps() const { return Results() + size * kDepth * kChunkBytes; }
  int64_t TotalBytes() const { return Heaps() + size * heap_bytes; }

  int64_t Slot(int rank, int parity) const { return Slots() + (rank * 2 + parity) * kSlotBytes; }
  int64_t Outbox(int rank, int64_t chunk) const { return Outboxes() + (rank * kDepth + chunk % kDepth) * kChunkBytes; }
  int64_t Result(int rank, int64_t chunk) const { return Results() + (rank * kDepth + chunk % kDepth) * kChunkBytes; }
  int64_t Heap(int rank) const { return Heaps() + rank * heap_bytes; }
};

}  // namespace lockstep::shm
