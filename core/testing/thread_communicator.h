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

#include "core/comm/communicator.h"

namespace lockstep::testing {

// The board on which the threads of a ThreadCommunicator leave what they bring to a collective.
struct ThreadBoard {
  struct Entry {
    std::string call{};
    const void* in = nullptr;
    void* data = nullptr;
    std::vector<int64_t> counts{};
    Status declined{};
  };

  explicit ThreadBoard(int size) : entries(size) {}

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

  std::vector<Entry> entries;
  std::mutex mutex;
  std::condition_variable wake;
  int waiting = 0;     // guarded by mutex
  int64_t rounds = 0;  // guarded by mutex
};

// Ranks as threads of one process, as plainly as it goes: each leaves its arguments on a board, waits for all, reads
// what it needs from the others' memory, and waits again. For tests of what stands above communication; it has no
// deadlines, sums float and double alone, and takes the call's name and type for all that ranks can disagree about.
class ThreadCommunicator : public Communicator {
 public:
  ThreadCommunicator(int rank, std::shared_ptr<ThreadBoard> board) : rank_(rank), board_(std::move(board)) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(board_->entries.size()); }
  std::string_view backend() const override { return "threads"; }

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

  Status Decline(std::string_view name, const Status& why) override {
    Status got = Meet(name, {"Decline", nullptr, nullptr, {}, why}, [] {});
    return got.ok() ? why : got;
  }

  void Abort(const Status& why) override { std::abort(); }
  void Leave() override {}
  std::shared_ptr<SharedBuffer> AllocateShared(int64_t bytes) override { return nullptr; }

 private:
  struct Range {
    int64_t begin, count;
  };

  // What rank `rank` gets of items that are counted so.
  static Range RangeOf(const std::vector<int64_t>& counts, int rank) {
    return {std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0}), counts[rank]};
  }

  // Leaves `entry`, waits for all, does `work` with the entries of all, and waits again, since entries point to the
  // ranks' own memory. Ranks that called something else, or declined, make it fail on all, and the next call starts
  // afresh.
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

// Runs `work` on `size` ranks at once, each a thread with a communicator of its own.
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
