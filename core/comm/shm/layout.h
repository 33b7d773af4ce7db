#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>

#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/comm/collective/call.h"
#include "core/comm/options.h"

// What lies where in the shared memory of a job. One segment, made by rank 0 and mapped by all. R ranks, D = kDepth:
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
//   RankBlock, one page:    0 flag (64) | 128 calls[0] (896) | 1024 calls[1] (896) | 1920 last_words | 2952 cpus
//   FlagLine, one line:     0 progress | 4 sleepers | 8 state | 12 unused | 16 announcements[0] | 40 announcements[1]
//   Announcement:           0 fingerprint (8) | 8 payload (16)
//
// All begins as zeros, as new memory does: progress 0, nobody sleeps, state kRunning. Nothing but the three atomics is
// synchronised by itself; the rest is plain memory that is made visible by progress:
//
//   atomic    written                                     read                              carries
//   progress  by its rank: Announce, seq_cst              by peers: acquire; before a       all that the rank wrote to
//                                                         sleep seq_cst                     the segment before
//   sleepers  by peers around their sleep, seq_cst        by its rank: Announce, seq_cst    nothing
//   state     by its rank, once, release                  by peers: acquire                 last_words
//
// How it is kept free of races, in short: a rank announces what it did by raising its `progress`; every call begins
// with all ranks waiting for each other's announcement of it. So when a rank writes for call n + 2, every rank has
// ended call n: whatever belongs to a call needs two copies, chosen by the parity of the call's number. A call that
// broke off gives no such promise; but then no other begins.
//
// A change of anything here, or of the types in it, changes kLayoutVersion, which the ranks compare when they meet:
// processes of different builds must not share a segment. So does a change of how it is handed over (mesh.h).
namespace lockstep::shm {

// The length of the arrays by rank, of those in CallRecord as well. Reductions read from all ranks, so more of them on
// one host would want another algorithm before they want longer arrays.
inline constexpr int kMaxRanks = kMaxRanksPerHost;
inline constexpr uint32_t kLayoutVersion = 3;
// Of what the layout is made of: blocks and heaps begin at pages, so that the heaps can be advised by themselves
// (segment.cc), and slots, outboxes and results at least at pages as well, as they have whole pages for their sizes.
inline constexpr int64_t kPageBytes = 4096;
inline constexpr int64_t kCacheLineBytes = 64;

// Contributions up to this size travel in the flag's own cache line: it is what two announcements leave free in it.
inline constexpr int64_t kInlineBytes = 16;
// Contributions up to this size travel whole, in a slot. One wait in all, but in AllReduce each rank reads of
// them and reduces all: beyond this it pays to share the work, for a wait more.
inline constexpr int64_t kSlotBytes = 16 << 10;
// Large private contributions travel in pieces of this size, kDepth of them in flight (see staging.h). Each piece costs
// a wait, and the pipeline has to fill and to drain; the memory is 2 * R * kDepth * kChunkBytes for a job. An outbox
// has to hold a piece for each rank of at least a cache line.
inline constexpr int64_t kChunkBytes = 256 << 10;
inline constexpr int kDepth = 3;

// What kind of end a rank has come to. It changes once, from kRunning to one of the others, and stays.
enum class RankState : uint32_t {
  kRunning,
  kLeft,     // its communicator was destroyed in good order
  kAborted,  // its user called Abort
  kBroken,   // a call of it failed; the error is in LastWords
};

// One rank's announcement of one call, beside its progress in one cache line, so that a small call costs one line per
// peer. `payload` is the contribution itself where it is small enough, or says where it is: Places (reductions.cc) or
// Source (shm_communicator.h).
struct Announcement {
  uint64_t fingerprint;
  alignas(8) unsigned char payload[kInlineBytes];
};

// What the peers of a rank look at while they wait, alone in its cache line: nothing that is written for other reasons,
// but a sleeper's registration, takes it from their caches.
struct alignas(kCacheLineBytes) FlagLine {
  std::atomic<uint32_t> progress;  // number of announcements so far; the futex that peers sleep on
  std::atomic<uint32_t> sleepers;  // peers that sleep on it
  std::atomic<RankState> state;
  uint32_t unused;
  Announcement announcements[2];  // by parity of the call
};
static_assert(sizeof(FlagLine) == kCacheLineBytes);

// What a rank called, in full: read for the text of an error, and by AllToAllV for the counts. Written with each call
// and read seldom, so it lies outside of the flag's line, and apart from the line that the hardware fetches with it.
struct alignas(2 * kCacheLineBytes) CallRecord {
  CallKind kind;
  DType dtype;
  ReduceOp op;
  StatusCode why_code;  // of a Decline
  int32_t root;
  int64_t number;  // of the call
  int64_t width;
  // Elements, items or bytes, as the call has it; `counts` [R] where it has one for each rank, and otherwise what an
  // earlier call left there.
  int64_t count;
  int64_t counts[kMaxRanks];
  char name[128];  // cut off where longer
  char why[512];   // of a Decline
};

// Why a rank takes no further part. Written before its state is, and never again: who has read a state (acquire) that
// is not kRunning may read it. `text` ends with a zero byte, and is cut off where longer.
struct LastWords {
  StatusCode code;
  char text[1024];
};

// All that a rank says of itself. A page of its own, so that no two ranks write to neighbouring lines.
struct alignas(kPageBytes) RankBlock {
  FlagLine flag;
  alignas(2 * kCacheLineBytes) CallRecord calls[2];  // by parity of the call
  LastWords last_words;
  cpu_set_t cpus;  // on which the rank may run, when it attached
};

// Offsets in the segment, computed alike on every rank from two numbers that all have in common. `heap_bytes` is a
// multiple of kPageBytes. Functions without state; offsets are bytes from the segment's start.
struct Layout {
  int size;
  int64_t heap_bytes;  // per rank

  // Where the parts begin.
  int64_t Slots() const { return size * int64_t{sizeof(RankBlock)}; }
  int64_t Outboxes() const { return Slots() + size * 2 * kSlotBytes; }
  int64_t Results() const { return Outboxes() + size * kDepth * kChunkBytes; }
  int64_t Heaps() const { return Results() + size * kDepth * kChunkBytes; }
  int64_t TotalBytes() const { return Heaps() + size * heap_bytes; }

  // Where what belongs to one rank begins. Chunk k of a message lives in buffer k % kDepth.
  int64_t Slot(int rank, int parity) const { return Slots() + (rank * 2 + parity) * kSlotBytes; }
  int64_t Outbox(int rank, int64_t chunk) const { return Outboxes() + (rank * kDepth + chunk % kDepth) * kChunkBytes; }
  int64_t Result(int rank, int64_t chunk) const { return Results() + (rank * kDepth + chunk % kDepth) * kChunkBytes; }
  int64_t Heap(int rank) const { return Heaps() + rank * heap_bytes; }
};

}  // namespace lockstep::shm
