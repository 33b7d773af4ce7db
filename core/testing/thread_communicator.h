#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
#include "core/comm/collective/arguments.h"
#include "core/comm/collective/communicator.h"

namespace lockstep::testing {

// The board on which the threads of a ThreadCommunicator put their arguments of a collective. There is one for each
// job, shared by its ranks; it has one entry for each rank.
//
// Rank r writes entries[r] before the first Wait of a collective. No rank writes between the first Wait and the second
// one, so in between all may read all entries. Wait's mutex makes the entries visible.
struct ThreadBoard {
  // The arguments of one rank. Pointers refer to that rank's own memory.
  struct Entry {
    // Compared between the ranks: kind, name, and the type where it matters.
    std::string call{};
    // The rank's input: [sum(counts), width] items, or elements to be reduced.
    const void* in = nullptr;
    // The buffer of a Broadcast.
    void* data = nullptr;
    // AllGatherV: one count, of all the rank's items. AllToAllV: [R], by receiver.
    std::vector<int64_t> counts{};
    // Not OK if the rank declined.
    Status declined{};
  };

  explicit ThreadBoard(int size) : entries(size) {}

  // Returns when all ranks have called it as often as this one: a reusable barrier. A waiting rank remembers the round,
  // because the next one may begin before all have woken.
  void Wait() {
    const MutexLock lock(mutex);
    const int64_t round = rounds;
    if (++waiting == static_cast<int>(entries.size())) {
      waiting = 0;
      ++rounds;
      wake.NotifyAll();
    } else {
      while (rounds == round) wake.Wait(mutex);
    }
  }

  // [R]. Guarded by the rounds of Wait, as described above, and not by the mutex.
  std::vector<Entry> entries;
  Mutex mutex;
  CondVar wake;
  int waiting LOCKSTEP_GUARDED_BY(mutex) = 0;
  int64_t rounds LOCKSTEP_GUARDED_BY(mutex) = 0;
};

// Ranks as threads of one process, in the simplest way: each puts its arguments on a board, waits for all, reads the
// others' memory, and waits again. It is for tests of the layers above communication (sharding, agreements). They then
// need neither processes nor shared memory, run under a debugger, and are checked by sanitizers.
//
// These parts of Communicator's contract are missing:
// - it has no deadlines: a rank that never comes hangs the test;
// - reductions are sums for any `op`, and only of float and double;
// - ranks are checked only for different kinds, names and (in AllGatherV and AllToAllV) types of calls;
// - it has neither shared buffers nor links, and does not check arguments;
// - Abort ends the process, because no test uses it.
//
// One object for each rank, used by one thread at a time. As everywhere, sums are in rank order.
class ThreadCommunicator : public Communicator {
 public:
  ThreadCommunicator(int rank, std::shared_ptr<ThreadBoard> board) : rank_(rank), board_(std::move(board)) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(board_->entries.size()); }
  std::string_view backend() const override { return "threads"; }

  // Sums go to separate memory first: `in` may be `out`, and peers read `in` until the second wait.
  Status AllReduce(std::string_view name, ReduceOp op, DType dtype, int64_t count, const void* in, void* out) override {
    std::vector<char> sums(count * DTypeSize(dtype));
    LOCKSTEP_RETURN_IF_ERROR(Meet(name, {"AllReduce", in}, [&] { Sum(dtype, 0, count, sums.data()); }));
    if (!sums.empty()) std::memcpy(out, sums.data(), sums.size());
    return OkStatus();
  }

  Status ReduceScatter(std::string_view name, ReduceOp op, DType dtype, std::span<const int64_t> counts, const void* in,
                       void* out) override {
    const int64_t begin = std::accumulate(counts.begin(), counts.begin() + rank_, int64_t{0});
    return Meet(name, {"ReduceScatter", in}, [&] { Sum(dtype, begin, counts[rank_], out); });
  }

  Status Broadcast(std::string_view name, int root, int64_t bytes, void* data) override {
    return Meet(name, {"Broadcast", nullptr, data}, [&] {
      if (rank_ != root) std::memcpy(data, board_->entries[root].data, bytes);
    });
  }

  Status AllGatherV(std::string_view name, Item item, int64_t count, const void* in,
                    const Allocate& allocate) override {
    return Gather(name, "AllGatherV", item, {count}, in, allocate,
                  [](const std::vector<int64_t>& counts) { return RangeOf(counts, 0); });
  }

  Status AllToAllV(std::string_view name, Item item, std::span<const int64_t> send_counts, const void* in,
                   const Allocate& allocate) override {
    return Gather(name, "AllToAllV", item, {send_counts.begin(), send_counts.end()}, in, allocate,
                  [this](const std::vector<int64_t>& counts) { return RangeOf(counts, rank_); });
  }

  Status Barrier(std::string_view name) override {
    return Meet(name, {"Barrier"}, [] {});
  }

  // Agree returns the error of the lowest rank that declined; if that is this rank, its own error comes back.
  Status Decline(std::string_view name, const Status& why) override {
    Status got = Meet(name, {"Decline", nullptr, nullptr, {}, why}, [] {});
    return got.ok() ? why : got;
  }

  void Abort(const Status& why) override { std::abort(); }
  void Leave(std::string_view) override {}
  std::optional<int> Link(int rank) const override { return std::nullopt; }
  std::shared_ptr<SharedBuffer> AllocateShared(int64_t bytes) override { return nullptr; }
  bool peers_read_shared() const override { return false; }

 private:
  // Items [begin, begin + count) of a rank's input.
  struct Range {
    int64_t begin, count;
  };

  // Returns the items that rank `rank` gets. `counts`: [R], or [1] with rank 0 for all items.
  static Range RangeOf(const std::vector<int64_t>& counts, int rank) {
    return {std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0}), counts[rank]};
  }

  // Writes `entry`, waits for all, does `work` with the entries of all, and waits again, because entries point to the
  // ranks' own memory. If ranks called something else, or declined, it fails on all, and the next call starts normally:
  // every rank reads the same entries and so gets the same status.
  template <typename Work>
  Status Meet(std::string_view name, ThreadBoard::Entry entry, const Work& work) {
    entry.call += " '" + std::string(name) + "'";
    board_->entries[rank_] = std::move(entry);
    board_->Wait();
    const Status status = Agree();
    if (status.ok()) work();
    board_->Wait();
    return status;
  }

  // Returns the same on every rank: the error of the lowest rank that declined, else whether all calls equal rank 0's.
  Status Agree() const {
    const std::vector<ThreadBoard::Entry>& entries = board_->entries;
    for (int r = 0; r < size(); ++r) {
      if (!entries[r].declined.ok()) return entries[r].declined.WithPrefix("rank " + std::to_string(r) + ": ");
    }
    for (const ThreadBoard::Entry& entry : entries) {
      if (entry.call != entries[0].call) return FailedPrecondition(entry.call + " and " + entries[0].call);
    }
    return OkStatus();
  }

  // Implements both exchanges. `counts` is this rank's. `range_for` returns the items of a rank, by its counts, that
  // this rank receives. They are written to the result of `allocate`, in rank order. If allocation fails, only this
  // rank fails, and it still waits for its peers.
  template <typename RangeFor>
  Status Gather(std::string_view name, std::string call, Item item, std::vector<int64_t> counts, const void* in,
                const Allocate& allocate, const RangeFor& range_for) {
    call += " of " + std::to_string(item.width) + " " + std::string(DTypeName(item.dtype));
    Status status;
    const Status met = Meet(name, {std::move(call), in, nullptr, std::move(counts)}, [&] {
      std::vector<int64_t> received;
      for (const ThreadBoard::Entry& entry : board_->entries) received.push_back(range_for(entry.counts).count);
      const Received out = AllocateFor("exchange", name, received, item.bytes(), allocate);
      status = out.status;
      if (!status.ok()) return;
      char* next = out.data;
      for (const ThreadBoard::Entry& entry : board_->entries) {
        const Range range = range_for(entry.counts);
        const int64_t bytes = range.count * item.bytes();
        if (bytes > 0) std::memcpy(next, static_cast<const char*>(entry.in) + range.begin * item.bytes(), bytes);
        next += bytes;
      }
    });
    return met.ok() ? status : met;
  }

  // Returns elements [begin, begin + count) of all ranks' inputs, added in rank order.
  void Sum(DType dtype, int64_t begin, int64_t count, void* out) const {
    if (dtype == DType::kFloat32) return SumAs<float>(begin, count, out);
    if (dtype == DType::kFloat64) return SumAs<double>(begin, count, out);
    std::abort();
  }

  template <typename T>
  void SumAs(int64_t begin, int64_t count, void* out) const {
    for (int64_t i = 0; i < count; ++i) {
      T sum = 0;
      for (const ThreadBoard::Entry& entry : board_->entries) sum += static_cast<const T*>(entry.in)[begin + i];
      static_cast<T*>(out)[i] = sum;
    }
  }

  const int rank_;
  const std::shared_ptr<ThreadBoard> board_;
};

// Runs `work` on `size` ranks at once, each a thread with its own communicator, and returns when all have ended. `work`
// runs on all threads, so it must share captured references with care; usually that is a vector of results with an
// element for each rank.
inline void RunOnThreads(int size, const std::function<void(Communicator&)>& work) {
  const auto board = std::make_shared<ThreadBoard>(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadCommunicator communicator(rank, board);
      work(communicator);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace lockstep::testing
