#pragma once

#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "core/comm/collective/communicator.h"

namespace lockstep::testing {

// The board on which the threads of a ThreadCommunicator leave what they bring to a collective. One for each job;
// shared by its ranks, which number as many as it has entries.
//
// Rank r writes entries[r] before the first Wait of a collective and nobody writes between that and the second one, so
// between the two all may read all. Wait's mutex is what makes the entries visible.
struct ThreadBoard {
  // What one rank brings. Pointers lead to that rank's own memory.
  struct Entry {
    // Compared over the ranks: kind, name, and type where it matters.
    std::string call{};
    // What the rank contributes: [sum(counts), width] items, or elements to be reduced.
    const void* in = nullptr;
    // The buffer of a Broadcast.
    void* data = nullptr;
    // AllGatherV: one count, of all that the rank has. AllToAllV: [R], by receiver.
    std::vector<int64_t> counts{};
    // Not OK: the rank declined.
    Status declined{};
  };

  explicit ThreadBoard(int size) : entries(size) {}

  // Returns when all ranks have called it as often as this one: a barrier that is used again and again. Who waits
  // remembers the round, as the next one may begin before all have woken.
  void Wait() {
    std::unique_lock lock(mutex);
    const int64_t round = rounds;
    if (++waiting == static_cast<int>(entries.size())) {
      waiting = 0;
      ++rounds;
      wake.notify_all();
    } else {
      wake.wait(lock, [&] { return rounds != round; });
    }
  }

  // [R]. Guarded by the rounds of Wait, as said above, and not by the mutex.
  std::vector<Entry> entries;
  std::mutex mutex;
  std::condition_variable wake;
  int waiting = 0;     // guarded by mutex
  int64_t rounds = 0;  // guarded by mutex
};

// Ranks as threads of one process, as plainly as it goes: each leaves its arguments on a board, waits for all, reads
// what it needs from the others' memory, and waits again. For tests of what stands above communication (sharding,
// agreements), which so need neither processes nor shared memory, run under a debugger, and are checked by sanitizers.
//
// What it leaves out of the contract of Communicator: it has no deadlines, and a rank that never comes hangs the test;
// reductions are sums, whatever `op` says, of float and double alone; ranks can disagree about a call's kind, name and
// (in AllGatherV and AllToAllV) type and nothing else; there are no shared buffers and no links; arguments are not
// checked; and
// Abort ends the process, since no test of it has a use for one.
//
// One object for each rank, used by one thread at a time. Sums are in rank order, as everywhere.
class ThreadCommunicator : public Communicator {
 public:
  ThreadCommunicator(int rank, std::shared_ptr<ThreadBoard> board) : rank_(rank), board_(std::move(board)) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(board_->entries.size()); }
  std::string_view backend() const override { return "threads"; }

  // Sums go to memory of its own first: `in` may be `out`, and peers read `in` until the second wait.
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

  // Agree finds the refusal of the lowest rank; its own is what comes back where it is that rank.
  Status Decline(std::string_view name, const Status& why) override {
    Status got = Meet(name, {"Decline", nullptr, nullptr, {}, why}, [] {});
    return got.ok() ? why : got;
  }

  void Abort(const Status& why) override { std::abort(); }
  void Leave(std::string_view) override {}
  int Link(int rank) const override { return -1; }
  std::shared_ptr<SharedBuffer> AllocateShared(int64_t bytes) override { return nullptr; }
  bool peers_read_shared() const override { return false; }

 private:
  // Items [begin, begin + count) of a rank's input.
  struct Range {
    int64_t begin, count;
  };

  // What rank `rank` gets of items that are counted so.
  // `counts`: [R], or [1] with rank 0 for "all of it".
  static Range RangeOf(const std::vector<int64_t>& counts, int rank) {
    return {std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0}), counts[rank]};
  }

  // Leaves `entry`, waits for all, does `work` with the entries of all, and waits again, since entries point to the
  // ranks' own memory. Ranks that called something else, or declined, make it fail on all, and the next call starts
  // afresh: every rank looks at the same entries and so comes to the same status.
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

  // The same on every rank: a refusal of the lowest rank that declined, else whether all called what rank 0 called.
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

  // Both exchanges. `counts` is this rank's; `range_for` says which items of a rank, by its counts, this rank receives.
  // They go to what `allocate` gives, in rank order. Where that fails, this rank fails alone, and still waits for its
  // peers.
  template <typename RangeFor>
  Status Gather(std::string_view name, std::string call, Item item, std::vector<int64_t> counts, const void* in,
                const Allocate& allocate, const RangeFor& range_for) {
    call += " of " + std::to_string(item.width) + " " + std::string(DTypeName(item.dtype));
    Status status;
    const Status met = Meet(name, {std::move(call), in, nullptr, std::move(counts)}, [&] {
      std::vector<int64_t> received;
      for (const ThreadBoard::Entry& entry : board_->entries) received.push_back(range_for(entry.counts).count);
      Result<void*> out = allocate(received);
      status = out.status();
      if (!status.ok()) return;
      char* next = static_cast<char*>(*out);
      for (const ThreadBoard::Entry& entry : board_->entries) {
        const Range range = range_for(entry.counts);
        const int64_t bytes = range.count * item.bytes();
        if (bytes > 0) std::memcpy(next, static_cast<const char*>(entry.in) + range.begin * item.bytes(), bytes);
        next += bytes;
      }
    });
    return met.ok() ? status : met;
  }

  // Elements [begin, begin + count) of all ranks' inputs, added up in rank order.
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

// Runs `work` on `size` ranks at once, each a thread with a communicator of its own, and returns when all have ended.
// `work` is called from all of them, so what it captures by reference it has to share with care: a vector of results
// with an element for each rank is the usual way.
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
