#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/comm/collective/communicator.h"
#include "core/comm/collective/reduce.h"
#include "core/comm/gloo/calls.h"
#include "core/comm/gloo/streams.h"

// Folder gloo/: the backend for ranks on different hosts, over TCP. Only this folder includes Gloo's headers.

namespace lockstep::gloo {

// The collectives of ranks on different hosts, over Gloo's connections. It keeps Communicator's contract for the
// members of a group, numbered by their index in it. The hierarchical communicator
// (hierarchical/hierarchical_communicator.h) combines it with shared memory, and detects lost ranks. This class ends
// its waits when Break is called, or when a connection ends.
//
// docs/algorithms.md has the steps and bytes of each. Only the size selects one of three ways for contributions:
//
//   beside the head   with the message that begins the call, up to Calls::kMostBytes; one message delay
//   by message        in a second message; two message delays
//   by memory         in pieces, from memory to memory
//
// It has neither shared memory nor links.
class GlooCommunicator final : public Communicator {
 public:
  explicit GlooCommunicator(std::unique_ptr<Streams> streams);

  int rank() const override { return index_; }
  int size() const override { return size_; }
  std::string_view backend() const override { return "gloo"; }

  Status AllReduce(std::string_view name, ReduceOp op, DType dtype, int64_t count, const void* in, void* out) override;
  Status ReduceScatter(std::string_view name, ReduceOp op, DType dtype, std::span<const int64_t> counts, const void* in,
                       void* out) override;
  Status Broadcast(std::string_view name, int root, int64_t bytes, void* data) override;
  Status AllGatherV(std::string_view name, Item item, int64_t count, const void* in, const Allocate& allocate) override;
  Status AllToAllV(std::string_view name, Item item, std::span<const int64_t> send_counts, const void* in,
                   const Allocate& allocate) override;
  Status Barrier(std::string_view name) override { return Agree({.kind = CallKind::kBarrier, .name = name}); }
  Status Decline(std::string_view name, const Status& why) override { return Decline(name, why, /*verbatim=*/false); }
  void Abort(const Status& why) override { (void)Break(why); }
  void Leave(std::string_view how) override;
  std::optional<int> Link(int) const override { return std::nullopt; }
  std::shared_ptr<SharedBuffer> AllocateShared(int64_t) override { return nullptr; }
  bool peers_read_shared() const override { return false; }
  void CountWaits(LaneCounters* counters) override { calls_.CountWaits(counters); }

  // For the communicator that combines backends:
  //
  // Agree compares a call that consists of several calls, and does nothing else.
  Status Agree(const Call& call);
  // `verbatim`: `why` already names its rank.
  Status Decline(std::string_view name, const Status& why, bool verbatim);
  // AllReduce with another reduction, and AllGatherV of another item, than the call that the ranks compare.
  Status AllReduceAs(const Call& call, ReduceOp op, const void* in, void* out);
  Status AllGatherAs(const Call& call, Item item, int64_t count, const void* in, const Allocate& allocate);
  void SetNameInErrors(std::optional<CallKind> kind) { calls_.SetNameInErrors(kind); }
  // `allocate` may call Break too, if the peers' announcements are impossible.
  //
  // Ends all calls; `error` is returned from then on. If it is already broken, the first error stays and is returned.
  Status Break(const Status& error) { return streams_->Break(error); }
  bool broken() const override { return streams_->broken(); }
  // Waits, before Leave, until this rank's finished contributions have reached the peers. Like a collective, one at a
  // time.
  void Flush();
  Streams& streams() { return *streams_; }

 private:
  // Elements [begin, begin + count).
  struct Range {
    int64_t begin;
    int64_t count;
  };
  // Returns a rank's share of `count` elements: all shares are equal except the last ones, and begin at cache lines.
  Range ShareOf(int rank, int64_t count, int64_t element_bytes) const;

  // Returns `status`; after an error of the streams returns that error and releases all memory.
  Status FoldError(const Status& status) { return streams_->broken() ? streams_->Forget() : status; }
  Status ForPeers(const std::function<Status(int peer)>& work) const;

  // reductions.cc
  Status ReduceBesideHeads(const Call& call, ReduceFunction reduce, const char* in, char* out);
  Status AllReduceByMessages(const Call& call, ReduceFunction reduce, const char* in, char* out);
  // Each rank reduces the range `shares[rank]` of all inputs to `own`; with `out` all ranks get all results.
  Status ReduceByMemory(ReduceFunction reduce, int64_t width, const std::vector<Range>& shares, const char* in,
                        char* own, char* out);

  // exchanges.cc
  Status BroadcastByMemory(int root, int64_t bytes, char* data);
  // Implements AllGatherV and AllToAllV: parts[p] goes to peer p, [n].
  Status Exchange(const Call& call, Item item, const std::vector<Calls::Part>& parts, const Allocate& allocate);
  // Returns the counts that the peers announced, [n], or an error if they are impossible.
  Result<std::vector<int64_t>> CountsOf(const std::vector<Calls::Part>& parts, int64_t width);
  // Moves the items to `memory`, after the exchange has begun.
  Status MoveItems(const std::vector<Calls::Part>& parts, const std::vector<int64_t>& counts, int64_t width,
                   char* memory);
  // Waits until all sends from memory have left: sends[p] to peer p, [n].
  Status AwaitSends(const std::vector<int64_t>& sends);

  const std::unique_ptr<Streams> streams_;
  const int index_;
  const int size_;
  Calls calls_;
  std::vector<char> scratch_;  // for reductions: pieces of the peers
};

}  // namespace lockstep::gloo
