#include "core/snapshot/row_snapshot.h"

#include <algorithm>
#include <fstream>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace lockstep {
namespace {

constexpr int64_t kRows = 3000, kDim = 3;
constexpr int64_t kRowBytes = kDim * static_cast<int64_t>(sizeof(float));
using Rows = std::vector<float>;
using Order = RowSnapshot::Order;

Rows Numbered() {
  Rows rows(kRows * kDim);
  std::iota(rows.begin(), rows.end(), 0.0f);
  return rows;
}

std::unique_ptr<RowSnapshot> SnapshotOf(Rows& rows, Order order = Order::kByNumber) {
  const auto count = static_cast<int64_t>(rows.size()) / kDim;
  return *RowSnapshot::Begin({{RowView::Contiguous(rows.data(), kRowBytes), kRowBytes}}, count, order);
}

void Change(Rows* rows, RowSnapshot* snapshot, const std::vector<uint32_t>& numbers) {
  snapshot->BeforeChange(numbers);
  for (const uint32_t number : numbers) std::fill_n(rows->begin() + number * kDim, kDim, -1.0f);
}

TEST(RowSnapshot, ReadsRowsThatDidNotChange) {
  Rows rows = Numbered(), read(rows.size());
  const auto snapshot = SnapshotOf(rows);
  snapshot->Read(0, kRows, read.data());
  EXPECT_EQ(read, rows);
  EXPECT_EQ(snapshot->copied_bytes(), 0);
}

TEST(RowSnapshot, ReadsRowsAsTheyWereWhileTheyChange) {
  const Rows before = Numbered();
  Rows rows = before, read(rows.size());
  const auto snapshot = SnapshotOf(rows);
  std::mt19937 random(7);
  std::uniform_int_distribution<uint32_t> any(0, kRows - 1);
  for (int64_t begin = 0; begin < kRows; begin += 100) {
    std::vector<uint32_t> numbers(50);
    std::generate(numbers.begin(), numbers.end(), [&] { return any(random); });
    numbers.push_back(numbers.front());  // twice
    Change(&rows, snapshot.get(), numbers);
    Change(&rows, snapshot.get(), numbers);  // again, as in the next step
    snapshot->Read(begin, begin + 100, read.data() + begin * kDim);
  }
  EXPECT_EQ(read, before);
  EXPECT_NE(rows, before);
}

TEST(RowSnapshot, RowsThatWereSeenAreStillOfTheSnapshot) {
  const Rows before = Numbered();
  Rows rows = before, seen(rows.size()), read(rows.size());
  const auto snapshot = SnapshotOf(rows);
  Change(&rows, snapshot.get(), {3, 700});
  snapshot->Peek(0, kRows, seen.data());
  Change(&rows, snapshot.get(), {4, 700});
  snapshot->Read(0, kRows, read.data());
  EXPECT_EQ(seen, before);
  EXPECT_EQ(read, before);
}

TEST(RowSnapshot, CopiesOnlyRowsThatChangeBeforeTheyAreRead) {
  Rows rows = Numbered(), read(rows.size());
  const auto snapshot = SnapshotOf(rows);
  snapshot->Read(0, 2000, read.data());
  Change(&rows, snapshot.get(), {0, 1999});
  EXPECT_EQ(snapshot->copied_bytes(), 0);
  Change(&rows, snapshot.get(), {2000});
  EXPECT_GT(snapshot->copied_bytes(), 0);
}

TEST(RowSnapshot, HasNoRowsOfAnEmptyShard) {
  for (const Order order : {Order::kByNumber, Order::kAnyOrder}) {
    Rows none;
    const auto snapshot = SnapshotOf(none, order);
    snapshot->BeforeChange({});
    snapshot->Read(0, 0, nullptr);
    snapshot->TakeCopies([](const char*) { FAIL(); });
  }
}

// Rows of several columns come whole, only the predicate's rows come, and rows that are made later do not.
TEST(RowSnapshot, InAnyOrderHasEachRowOfItOnce) {
  Rows rows = Numbered();
  std::vector<int64_t> keys(kRows);
  std::iota(keys.begin(), keys.end(), 100);
  const auto snapshot = *RowSnapshot::Begin(
      {{RowView::Contiguous(keys.data(), 8), 8}, {RowView::Contiguous(rows.data(), kRowBytes), kRowBytes}}, kRows - 1,
      Order::kAnyOrder);
  EXPECT_EQ(snapshot->row_bytes(), 8 + kRowBytes);
  const auto is_part = [](uint32_t row) { return row % 3 != 0; };
  std::vector<int> seen(kRows);
  const auto take = [&](const char* data) {
    int64_t key = 0;
    std::memcpy(&key, data, sizeof(key));
    float values[kDim];
    std::memcpy(values, data + sizeof(key), kRowBytes);
    for (int64_t d = 0; d < kDim; ++d) EXPECT_EQ(values[d], static_cast<float>((key - 100) * kDim + d));
    ++seen[key - 100];
  };
  for (int64_t begin = 0; begin < kRows; begin += 500) {
    for (uint32_t row = 0; row < kRows; row += 7) {
      snapshot->BeforeChange(row, [&] { return is_part(row); });
      rows[row * kDim] = -1;
    }
    snapshot->TakeCopies(take);
    snapshot->Visit(begin, begin + 500, [&](uint32_t row) { seen[row] += is_part(row) ? 1 : 0; });
  }
  snapshot->TakeCopies(take);
  for (uint32_t row = 0; row < kRows; ++row) EXPECT_EQ(seen[row], row < kRows - 1 && is_part(row) ? 1 : 0) << row;
}

TEST(RowSnapshot, InAnyOrderCopiesTakeTheMemoryOfThoseBefore) {
  Rows rows = Numbered();
  const auto snapshot = SnapshotOf(rows, Order::kAnyOrder);
  int64_t taken = 0, bytes = 0;
  for (uint32_t begin = 0; begin < kRows; begin += 100) {
    std::vector<uint32_t> numbers(100);
    std::iota(numbers.begin(), numbers.end(), begin);
    Change(&rows, snapshot.get(), numbers);
    if (begin == 0) bytes = snapshot->copied_bytes();
    snapshot->TakeCopies([&](const char* data) {
      float first = 0;
      std::memcpy(&first, data, sizeof(first));
      EXPECT_GE(first, static_cast<float>(begin * kDim));
      ++taken;
    });
  }
  EXPECT_EQ(taken, kRows);
  EXPECT_EQ(snapshot->copied_bytes(), bytes);
}

int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * 4096;
}

TEST(RowSnapshot, BeginTakesNoMemoryOfTheRows) {
  constexpr int64_t kMany = int64_t{1} << 31;
  const int64_t before = ResidentBytes();
  float row[kDim] = {};
  const auto snapshot =
      *RowSnapshot::Begin({{RowView::Contiguous(row, 0), kRowBytes}}, kMany, RowSnapshot::Order::kByNumber);
  EXPECT_LT(ResidentBytes() - before, 4 << 20);
  snapshot->BeforeChange(std::vector<uint32_t>{0, kMany - 1});
  EXPECT_EQ(snapshot->status(), OkStatus());
}

TEST(RowSnapshot, WithoutMemoryForACopyIsLostAndChangesGoOn) {
  if (LOCKSTEP_SANITIZED) GTEST_SKIP() << "allocations of this size end the program";
  char row = 0;
  for (const Order order : {Order::kByNumber, Order::kAnyOrder}) {
    const auto snapshot = *RowSnapshot::Begin({{RowView::Contiguous(&row, 0), int64_t{1} << 50}}, kRows, order);
    EXPECT_EQ(snapshot->status(), OkStatus());
    snapshot->BeforeChange(std::vector<uint32_t>{5, 6, 5});
    EXPECT_EQ(snapshot->status().code(), StatusCode::kResourceExhausted);
    snapshot->TakeCopies([](const char*) { FAIL(); });
  }
}

// Threads change rows, each all of them in an order of its own, while one thread reads; the thread sanitizer checks it.
TEST(RowSnapshot, IsReadWhileThreadsChangeRows) {
  for (const Order order : {Order::kByNumber, Order::kAnyOrder}) {
    const Rows before = Numbered();
    Rows rows = before, read(rows.size(), -2);
    const auto snapshot = SnapshotOf(rows, order);
    std::vector<std::thread> threads;
    for (uint32_t thread = 0; thread < 3; ++thread) {
      threads.emplace_back([&, thread] {
        std::vector<uint32_t> numbers(kRows);
        std::iota(numbers.begin(), numbers.end(), 0);
        std::shuffle(numbers.begin(), numbers.end(), std::mt19937(thread));
        for (const uint32_t number : numbers) {
          snapshot->BeforeChange({&number, 1});
          std::atomic_ref<float>(rows[number * kDim + thread]).store(-1, std::memory_order_relaxed);
        }
      });
    }
    const auto put = [&](const float* row) { std::copy_n(row, kDim, read.begin() + static_cast<int64_t>(row[0])); };
    const auto put_copy = [&](const char* data) { put(reinterpret_cast<const float*>(data)); };
    for (int64_t begin = 0; begin < kRows; begin += 60) {
      if (order == Order::kByNumber) {
        snapshot->Peek(begin, begin + 60, read.data() + begin * kDim);
        snapshot->Read(begin, begin + 60, read.data() + begin * kDim);
      } else {
        snapshot->TakeCopies(put_copy);
        snapshot->Visit(begin, begin + 60, [&](uint32_t row) { put(rows.data() + row * kDim); });
      }
    }
    for (std::thread& thread : threads) thread.join();
    snapshot->TakeCopies(put_copy);
    EXPECT_EQ(read, before);
    EXPECT_EQ(std::count(rows.begin(), rows.end(), -1.0f), kRows * kDim);
  }
}

}  // namespace
}  // namespace lockstep
