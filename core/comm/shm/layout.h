#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>

#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/comm/collective/call.h"
#include "core/comm/options.h"

// The layout of a job's shared memory: one segment, made by rank 0 and mapped by all. R ranks, D = kDepth:
// ```
// +-----------+---------------+----------------+-----------------+------------------+------+-----------+
// | RankBlock | slots         | outboxes       | results         | heap of rank 0   | ...  | heap R-1  |
// | x R       | R x 2 x kSlot | R x D x kChunk | R x D x kChunk  | heap_bytes       |      |           |
// +-----------+---------------+----------------+-----------------+------------------+------+-----------+
//
// RankBlock  a rank's data for the others; only that rank writes it (except for `sleepers`)
// slots      small contributions, whole; two per rank, for even and odd calls
// outboxes   pieces of large contributions on their way to the peers; D = kDepth pieces in flight
// results    reduced pieces on their way to the peers
// heaps      SharedBuffers: read, and in AllReduce written, by all
//
// RankBlock, one page:    0 flag (64) | 128 calls[0] (896) | 1024 calls[1] (896) | 1920 end_reason | 2952 cpus
// FlagLine, one line:     0 progress | 4 sleepers | 8 state | 12 unused | 16 announcements[0] | 40 announcements[1]
// Announcement:           0 fingerprint (8) | 8 payload (16)
// ```
// All memory begins as zeros: progress 0, no sleeping rank, state kRunning. Only the three atomics are synchronised by
// themselves; all other data is plain memory that progress makes visible:
// ```
// atomic    written                                     read                              carries
// progress  by its rank: Announce, seq_cst              by peers: acquire; before a       all that the rank wrote to
//                                                       sleep seq_cst                     the segment before
// sleepers  by peers around their sleep, seq_cst        by its rank: Announce, seq_cst    nothing
// state     by its rank, once, release                  by peers: acquire                 end_reason
// ```
// How races are avoided, in short: a rank announces its writes by raising its `progress`. In every call, all ranks
// first wait for each other's announcement of it. So when a rank writes for call n + 2, every rank has ended call n.
// Therefore the data of a call needs two copies, chosen by the parity of the call's number. A call that was broken off
// gives no such promise, but after it no other call begins.
//
// A change of this layout, or of the types in it, changes kLayoutVersion, which the ranks compare at the rendezvous:
// processes of different builds must not share a segment. So does a change of how the segment is passed on (mesh.h).
namespace lockstep::shm {

// The length of the arrays by rank, including those in CallRecord. Reductions read from all ranks, so for more ranks on
// one host another algorithm would be better than longer arrays.
inline constexpr int kMaxRanks = kMaxRanksPerHost;
inline constexpr uint32_t kLayoutVersion = 3;
// The unit of the layout: blocks and heaps begin at pages, so that the heaps can be advised separately (segment.cc).
// Slots, outboxes and results begin at pages as well, because their sizes are whole pages.
inline constexpr int64_t kPageBytes = 4096;
inline constexpr int64_t kCacheLineBytes = 64;

// Contributions up to this size are sent in the flag's own cache line: it is the space that two announcements leave in
// it.
inline constexpr int64_t kInlineBytes = 16;
// Contributions up to this size are sent whole, in a slot. This takes one wait in all, but in AllReduce each rank reads
// of them and reduces everything. For larger ones it pays to share the work, for one more wait.
inline constexpr int64_t kSlotBytes = 16 << 10;
// Large private contributions are sent in pieces of this size, kDepth of them in flight (see staging.h). Each piece
// costs a wait, and the pipeline has to fill and to drain. The memory is 2 * R * kDepth * kChunkBytes for a job. An
// outbox has to hold a piece of at least a cache line for each rank.
inline constexpr int64_t kChunkBytes = 256 << 10;
inline constexpr int kDepth = 3;

// The state of a rank. It changes once, from kRunning to one of the others, and stays.
enum class RankState : uint32_t {
  kRunning,
  kLeft,     // its communicator was destroyed in good order
  kAborted,  // its user called Abort
  kBroken,   // a call of it failed; the error is in EndReason
};

// One rank's announcement of one call. It shares a cache line with the progress, so that a small call costs one line
// per peer. `payload` is the contribution itself if it is small enough, or tells where it lies: Places (reductions.cc)
// or Source (shm_communicator.h).
struct Announcement {
  uint64_t fingerprint;
  alignas(8) unsigned char payload[kInlineBytes];
};

// The data that a rank's peers read while they wait, in a cache line of its own: only a sleeper's registration is
// written there for another reason, and takes the line from their caches.
struct alignas(kCacheLineBytes) FlagLine {
  std::atomic<uint32_t> progress;  // number of announcements so far; the futex that peers sleep on
  std::atomic<uint32_t> sleepers;  // peers that sleep on it
  std::atomic<RankState> state;
  uint32_t unused;
  Announcement announcements[2];  // by parity of the call
};
static_assert(sizeof(FlagLine) == kCacheLineBytes);

// A rank's call in full: read for the text of an error, and by AllToAllV for the counts. It is written with each call
// and rarely read, so it lies outside of the flag's line and of the line that the hardware fetches with it.
struct alignas(2 * kCacheLineBytes) CallRecord {
  CallKind kind;
  DType dtype;
  ReduceOp op;
  StatusCode why_code;  // for a Decline
  int32_t root;
  int64_t number;  // number of the call
  int64_t width;
  // Elements, items or bytes, depending on the call. `counts` is [R] if the call has one for each rank; otherwise it
  // holds an earlier call's.
  int64_t count;
  int64_t counts[kMaxRanks];
  char name[128];  // longer names are cut off
  char why[512];   // for a Decline
};

// The reason why a rank has ended. Written once, before its state: a reader that has seen a state other than kRunning
// (acquire) may read it. `text` ends with a zero byte; a longer text is cut off.
struct EndReason {
  StatusCode code;
  char text[1024];
};

// All data that a rank publishes. It has its own page, so that no two ranks write to neighbouring lines.
struct alignas(kPageBytes) RankBlock {
  FlagLine flag;
  alignas(2 * kCacheLineBytes) CallRecord calls[2];  // by parity of the call
  EndReason end_reason;
  cpu_set_t cpus;  // the CPUs on which the rank may run, when it attached
};

// Offsets in the segment, computed on every rank from two numbers that are equal on all. `heap_bytes` is a multiple of
// kPageBytes. The functions have no state; offsets are bytes from the segment's start.
struct Layout {
  int size;
  int64_t heap_bytes;  // per rank

  // Return the starts of the parts.
  int64_t Slots() const { return size * int64_t{sizeof(RankBlock)}; }
  int64_t Outboxes() const { return Slots() + size * 2 * kSlotBytes; }
  int64_t Results() const { return Outboxes() + size * kDepth * kChunkBytes; }
  int64_t Heaps() const { return Results() + size * kDepth * kChunkBytes; }
  int64_t TotalBytes() const { return Heaps() + size * heap_bytes; }

  // Return the start of a rank's part. Chunk k of a message lives in buffer k % kDepth.
  int64_t Slot(int rank, int parity) const { return Slots() + (rank * 2 + parity) * kSlotBytes; }
  int64_t Outbox(int rank, int64_t chunk) const { return Outboxes() + (rank * kDepth + chunk % kDepth) * kChunkBytes; }
  int64_t Result(int rank, int64_t chunk) const { return Results() + (rank * kDepth + chunk % kDepth) * kChunkBytes; }
  int64_t Heap(int rank) const { return Heaps() + rank * heap_bytes; }
};

}  // namespace lockstep::shm
