#pragma once

#include <sys/types.h>

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "core/comm/communicator.h"
#include "core/comm/context.h"
#include "core/comm/reduce.h"
#include "core/comm/shm/calls.h"
#include "core/comm/shm/heap.h"
#include "core/comm/shm/segment.h"
#include "core/comm/shm/waiter.h"

namespace lockstep::shm {

// The collectives of up to 16 ranks on one host, through shared memory. docs/algorithms.md has the steps and bytes of
// each. Contributions take one of three ways, by size and by where they lie:
//   in a slot   up to kSlotBytes: copied in before the call is announced, read by all; one wait
//   in place    larger, and in a SharedBuffer: peers read, and in AllReduce write, the buffer itself; two waits
//   staged      larger, and private: in chunks through the pipeline of staging.h
class ShmCommunicator final : public Communicator {
 public:
  // Meets the other ranks. Their options have to agree.
  static Result<std::unique_ptr<Communicator>> Create(const ContextOptions& options);
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
  Status Decline(std::string_view name, const Status& why) override;
  void Abort(const Status& why) override { waiter_->Abort(why); }
  void Leave() override;
  std::shared_ptr<SharedBuffer> AllocateShared(int64_t bytes) override { return heap_->Allocate(bytes); }

 private:
  // How a contribution that is not reduced travels: the payload of its announcement.
  struct Source {
    int64_t offset;  // in the segment, or one of the following
    int64_t count;   // of items, in AllGatherV
    static constexpr int64_t kStaged = -1;
    static constexpr int64_t kInSlot = -2;
  };
  // Bytes of this rank on their way to peers, or of a peer on their way here. `at` is their place in the outbox's
  // chunks.
  struct Flow {
    int rank;
    char* data;  // null: nobody wants them
    int64_t bytes;
    int64_t at;
  };
  // A part of a tensor: elements [begin, begin + count).
  struct Range {
    int64_t begin;
    int64_t count;
  };

  ShmCommunicator(std::shared_ptr<Segment> segment, int rank, std::unique_ptr<Waiter> waiter);

  // One count for each rank, none negative, and `in` there if they are not all zero.
  Status CheckCounts(std::string_view call, std::string_view name, std::span<const int64_t> counts,
                     const void* in) const;

  // reductions.cc
  Status AllReduceInSlot(const Call& call, ReduceFunction reduce, const void* in, void* out);
  Status AllReduceInPlace(const Call& call, ReduceFunction reduce);
  Status AllReduceStaged(const Call& call, ReduceFunction reduce, const char* in, char* out);
  Status ReduceScatterInSlot(const Call& call, ReduceFunction reduce, const void* in, void* out);
  Status ReduceScatterInPlace(const Call& call, ReduceFunction reduce, void* out);
  Status ReduceScatterStaged(const Call& call, ReduceFunction reduce, const char* in, char* out);
  // The share of `rank` when `count` elements are dealt out.
  Range ShareOf(int rank, int64_t count, int64_t element_bytes) const;

  // exchanges.cc
  Source Locate(const void* data, int64_t bytes, int64_t count);
  Source SourceOf(int rank) const;
  // Where the bytes of `rank` can be read at once; null: they come staged.
  const char* DirectData(int rank) const;
  bool AnyInPlace() const;
  Status Stream(int64_t longest_flow, int64_t piece_bytes, const std::vector<Flow>& out, const std::vector<Flow>& in);
  // The end of a call that reads in place: nobody changes a buffer before all have read it.
  Status AwaitReaders();

  char* Outbox(int rank, int64_t chunk) { return segment_->At(segment_->layout().Outbox(rank, chunk)); }
  char* ResultOf(int rank, int64_t chunk) { return segment_->At(segment_->layout().Result(rank, chunk)); }
  char* OwnSlot() { return segment_->At(segment_->layout().Slot(rank_, calls_.next_parity())); }

  const std::shared_ptr<Segment> segment_;
  const int rank_;
  const int size_;
  const pid_t owner_;  // a fork of the owner has no say in the job
  const std::shared_ptr<Heap> heap_;
  const std::unique_ptr<Waiter> waiter_;
  Calls calls_;
};

}  // namespace lockstep::shm
