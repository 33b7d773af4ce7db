#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/comm/collective/communicator.h"
#include "core/comm/collective/reduce.h"
#include "core/comm/options.h"
#include "core/comm/shm/attach.h"
#include "core/comm/shm/calls.h"
#include "core/comm/shm/heap.h"
#include "core/comm/shm/segment.h"
#include "core/comm/shm/waiter.h"

// Folder shm/: the backend for ranks of one host, through shared memory.

namespace lockstep::shm {

// The collectives of up to 16 ranks on one host, through shared memory. It keeps Communicator's contract, which is not
// repeated here. docs/algorithms.md has the steps and bytes of each. Size and place of a contribution select one of
// four ways:
//   inline      AllReduce of up to kInlineBytes: in the announcement itself; one wait
//   in a slot   up to kSlotBytes: copied before the call is announced, read by all; one wait
//   in place    larger, in a SharedBuffer: peers read the buffer itself, and in AllReduce write it; two waits
//   staged      larger, in private memory: in chunks through the pipeline of staging.h
// The way follows from data that all ranks see (sizes and announcements), so all choose the same way and wait equally
// often.
//
// The parts, from the bottom up: Segment (the memory), Peers (which ranks live), Waiter (progress), Calls (agreement on
// calls), Heap (shared buffers), and here the data's ways. The reductions and the exchanges have one file each.
//
// A call whose peers have already arrived makes no system call, unless one of them sleeps. It allocates only the lists
// of staged exchanges.
class ShmCommunicator final : public Communicator {
 public:
  // Makes the communicator of ranks after their rendezvous (attach.h).
  static Result<std::unique_ptr<ShmCommunicator>> Create(const ContextOptions& options, Group group);
  ~ShmCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view backend() const override { return "shm"; }

  Status AllReduce(std::string_view name, ReduceOp op, DType dtype, int64_t count, const void* in, void* out) override;
  Status ReduceScatter(std::string_view name, ReduceOp op, DType dtype, std::span<const int64_t> counts, const void* in,
                       void* out) override;
  Status Broadcast(std::string_view name, int root, int64_t bytes, void* data) override;
  Status AllGatherV(std::string_view name, Item item, int64_t count, const void* in, const Allocate& allocate) override;
  Status AllToAllV(std::string_view name, Item item, std::span<const int64_t> send_counts, const void* in,
                   const Allocate& allocate) override;
  Status Barrier(std::string_view name) override;
  Status Decline(std::string_view name, const Status& why) override {
    return Observe(CallKind::kDecline, name, 0, 0, [&] { return Decline(name, why, /*verbatim=*/false); });
  }
  Result<std::vector<int64_t>> Compare(const Call& call, std::span<const int64_t> values) override;
  void Abort(const Status& why) override { waiter_->Abort(why); }
  void End(const Status& error) override { waiter_->End(error); }
  bool broken() const override { return waiter_->broken(); }
  // Does nothing in a fork of the process that made the communicator.
  void Leave(std::string_view how) override;
  std::optional<int> Link(int rank) const override { return waiter_->peers().socket(rank); }
  std::optional<int> DeathFd(int rank) const override { return waiter_->peers().pidfd(rank); }
  Status StoppedPeer() override { return waiter_->JudgeStopped(); }
  std::shared_ptr<SharedBuffer> AllocateShared(int64_t bytes) override { return heap_->Allocate(bytes); }
  bool peers_read_shared() const override { return size_ > 1; }
  void CountWaits(LaneCounters* counters) override { waiter_->CountWaits(counters); }

  // For the communicator that combines backends (hierarchical/hierarchical_communicator.h):
  //
  // Agree compares a call that consists of several calls, and does nothing else.
  Status Agree(const Call& call) { return calls_.Begin(call, nullptr, 0); }
  // `verbatim`: `why` already names its rank.
  Status Decline(std::string_view name, const Status& why, bool verbatim);
  // AllReduce of at most kSlotBytes with another reduction, and AllGatherV of another item, than the call that the
  // ranks compare. The caller has checked the reduction's arguments.
  Status AllReduceInSlot(const Call& call, ReduceFunction reduce, const void* in, void* out);
  Status AllGatherAs(const Call& call, Item item, int64_t count, const void* in, const Allocate& allocate);
  // Set the name that errors use for the following calls, and the additional time that they wait.
  void SetNameInErrors(std::optional<CallKind> kind) { waiter_->SetNameInErrors(kind); }
  void set_patience(double seconds) { waiter_->set_patience(seconds); }
  // Sets whether missing peers are late themselves, or only wait for other hosts.
  void set_peers_are_late(bool value) { waiter_->set_peers_are_late(value); }
  // Ends all calls; `error` is returned from then on. If it is already broken, it has no effect.
  void Break(const Status& error) { waiter_->End(error); }
  Status CheckUsable() const { return calls_.CheckUsable(); }

 private:
  // The way of a contribution that is not reduced.
  enum class Way { kInSlot, kInPlace, kStaged };
  // The payload of the announcement of such a contribution, as plain memory.
  struct Source {
    int64_t offset;  // kInPlace: the offset in the segment; one of the following marks for the other ways
    int64_t count;   // number of items, in AllGatherV
    static constexpr int64_t kStagedMark = -1;
    static constexpr int64_t kInSlotMark = -2;
    Way way() const {
      if (offset == kInSlotMark) return Way::kInSlot;
      return offset == kStagedMark ? Way::kStaged : Way::kInPlace;
    }
  };
  // Bytes of this rank on their way to peers, or of a peer on their way here, through the outboxes of RunPipeline:
  // piece k of `bytes` goes through chunk k. `at` is their offset in the outbox's chunks.
  struct Flow {
    // The rank whose outbox they are read from; not used for sending, which uses this rank's own.
    int rank;
    char* data;  // null: they are dropped
    int64_t bytes;
    int64_t at;
  };
  // A part of a tensor: elements [begin, begin + count). Shares and pieces may be empty.
  struct Range {
    int64_t begin;
    int64_t count;
  };

  ShmCommunicator(std::shared_ptr<Segment> segment, int rank, std::unique_ptr<Waiter> waiter);

  // reductions.cc. For ways in place or staged, Begin was already called, because the announcements decide between the
  // two. The ways in a slot call it themselves, after their copy.
  Status AllReduceInPlace(const Call& call, ReduceFunction reduce);
  Status AllReduceStaged(const Call& call, ReduceFunction reduce, const char* in, char* out);
  Status ReduceScatterInSlot(const Call& call, ReduceFunction reduce, const void* in, void* out);
  Status ReduceScatterInPlace(const Call& call, ReduceFunction reduce, void* out);
  Status ReduceScatterStaged(const Call& call, ReduceFunction reduce, const char* in, char* out);
  // Returns the share of `rank` when `count` elements are divided: all shares are equal except the last ones, and begin
  // at multiples of two cache lines from the tensor's start.
  Range ShareOf(int rank, int64_t count, int64_t element_bytes) const;

  // exchanges.cc
  //
  // Returns the way of `bytes` at `data`, for the announcement; copies small data into the slot of the next call.
  // `count` is passed through. Fails as FillSlot does.
  Result<Source> Locate(const void* data, int64_t bytes, int64_t count);
  // Returns a rank's announcement; call it after Begin.
  Source SourceOf(int rank) const;
  // Returns the address at which the bytes of `rank` can be read at once, or null if they come staged. Valid until this
  // rank begins its next call (slot) or announces that it has read them (in place).
  const char* DirectData(int rank) const;
  // Returns whether the call has to end with AwaitReaders: the same answer on every rank.
  bool AnyInPlace() const;
  // Runs the staged part of an exchange: `out` are this rank's sends, `in` its receives, `longest_flow` the bytes of
  // the longest flow between any two ranks. All ranks call it with the same lengths, even without flows. A chunk takes
  // `piece_bytes` of each flow.
  Status Stream(int64_t longest_flow, int64_t piece_bytes, const std::vector<Flow>& out, const std::vector<Flow>& in);
  // Ends a call that reads in place: no rank changes a buffer before all have read it. One announcement and one wait.
  Status AwaitReaders();

  // Copies a contribution into this rank's slot of the next call, before Begin. Peers that still read the call before
  // use the other slot. No peer reads the call before that, unless a call broke in between. So a broken rank writes
  // nothing and returns its first error.
  Status FillSlot(const void* data, int64_t bytes);

  // Return addresses in the segment; `chunk` is counted from the start of the call.
  char* Outbox(int rank, int64_t chunk) { return segment_->At(segment_->layout().Outbox(rank, chunk)); }
  char* ResultOf(int rank, int64_t chunk) { return segment_->At(segment_->layout().Result(rank, chunk)); }

  const std::shared_ptr<Segment> segment_;
  const int rank_;
  const int size_;
  const pid_t owner_;  // a fork of the owner must not affect the job
  const std::shared_ptr<Heap> heap_;
  const std::unique_ptr<Waiter> waiter_;
  Calls calls_;
};

}  // namespace lockstep::shm
