#include "core/snapshot/row_snapshot.h"

#include <algorithm>
#include <array>
#include <bit>
#include <new>
#include <numeric>
#include <thread>
#include <utility>

namespace lockstep {
namespace {

int64_t RowBytesOf(const auto& columns) {
  return std::accumulate(columns.begin(), columns.end(), int64_t{0},
                         [](int64_t sum, const auto& column) { return sum + column.bytes; });
}

}  // namespace

RowSnapshot::RowSnapshot(std::vector<Column> columns, int64_t count, Order order)
    : columns_(std::move(columns)),
      count_(count),
      order_(order),
      row_bytes_(RowBytesOf(columns_)),
      copy_bytes_(static_cast<int64_t>(sizeof(Copy)) + (row_bytes_ + 7) / 8 * 8),
      block_rows_(std::clamp<int64_t>(kBlockBytes / copy_bytes_, 1, kMostBlockRows)) {}

Result<std::unique_ptr<RowSnapshot>> RowSnapshot::Begin(std::vector<Column> columns, int64_t count, Order order) {
  std::unique_ptr<RowSnapshot> snapshot(new RowSnapshot(std::move(columns), count, order));
  const int64_t groups = (count + kGroup - 1) / kGroup;
  // Small pages: a step that first touches one of 2 MiB would wait until all of it is cleared.
  const auto allocate = [&](int64_t bytes) { return Pages::Allocate(bytes, bytes); };
  if (groups == 0) return snapshot;
  LOCKSTEP_ASSIGN_OR_RETURN(snapshot->states_, allocate(groups * static_cast<int64_t>(sizeof(uint64_t))));
  if (order == Order::kByNumber) {
    LOCKSTEP_ASSIGN_OR_RETURN(snapshot->chains_, allocate(groups * static_cast<int64_t>(sizeof(Copy*))));
  }
  return snapshot;
}

RowSnapshot::~RowSnapshot() {
  while (blocks_ != nullptr) {
    Block* const next = blocks_->next;
    ::operator delete(blocks_);
    blocks_ = next;
  }
}

int64_t RowSnapshot::Claim(int64_t row, int64_t end) {
  const auto first = static_cast<int>(row % kGroup);
  const int64_t most = std::min(end - row, kGroup - first);
  auto states = States(row);
  uint64_t seen = states.load(std::memory_order_acquire);
  while (true) {
    const uint64_t taken = ((seen | seen >> 1) & kOfAll) >> (2 * first);
    const int64_t count = std::min<int64_t>(most, std::countr_zero(taken) / 2);
    if (count == 0) return 0;
    if (states.compare_exchange_weak(seen, seen | Bits(row, count), std::memory_order_acquire)) return count;
  }
}

bool RowSnapshot::ClaimUndone(int64_t row) {
  while (Claim(row, row + 1) == 0) {
    if (StateOf(row) == kDone) return false;
    std::this_thread::yield();  // another thread copies the row
  }
  return true;
}

void RowSnapshot::CopyAside(uint32_t row) {
  Copy* const copy = Reserve();
  if (copy == nullptr) {
    lost_.store(true, std::memory_order_release);
    return;
  }
  copy->row = row;
  CopyRows(row, int64_t{row} + 1, DataOf(copy));
  const auto put = [copy](auto& chain) {
    copy->next = chain.load(std::memory_order_relaxed);
    while (!chain.compare_exchange_weak(copy->next, copy, std::memory_order_release, std::memory_order_relaxed)) {
    }
  };
  if (order_ == Order::kAnyOrder) return put(all_);
  auto chain = Chain(row);
  put(chain);
}

void RowSnapshot::CopyRows(int64_t begin, int64_t end, char* out) const {
  const Column& first = columns_.front();
  if (columns_.size() == 1 && first.rows.chunks == nullptr && first.rows.stride == first.bytes) {
    std::memcpy(out, first.rows[begin], (end - begin) * first.bytes);
    return;
  }
  for (int64_t row = begin; row < end; ++row) {
    for (const Column& column : columns_) {
      std::memcpy(out, column.rows[row], column.bytes);
      out += column.bytes;
    }
  }
}

void RowSnapshot::ReadRows(int64_t begin, int64_t end, void* out, bool again) {
  auto* to = static_cast<char*>(out);
  std::array<Copy*, kGroup> copies;  // those of the rows of `group`
  int64_t group = -1;
  const auto find = [&](int64_t row) -> Copy* {
    if (row / kGroup != group || copies[row % kGroup] == nullptr) {
      group = row / kGroup;
      copies = {};
      for (Copy* copy = Chain(row).load(std::memory_order_acquire); copy != nullptr; copy = copy->next) {
        copies[copy->row % kGroup] = copy;
      }
    }
    return copies[row % kGroup];
  };
  for (int64_t row = begin; row < end;) {
    int64_t count = Claim(row, end);
    if (count > 0) {
      CopyRows(row, row + count, to);
      if (again) {
        Return(row, count);
      } else {
        Finish(row, count);
      }
    } else {
      while (StateOf(row) == kBusy) std::this_thread::yield();
      // A lost snapshot has no copy.
      if (Copy* const copy = find(row)) std::memcpy(to, DataOf(copy), row_bytes_);
      count = 1;
    }
    row += count;
    to += count * row_bytes_;
  }
}

RowSnapshot::Copy* RowSnapshot::Reserve() {
  if (lost_.load(std::memory_order_relaxed)) return nullptr;
  const MutexLock lock(mutex_);
  if (free_ != nullptr) return std::exchange(free_, free_->next);
  if (blocks_ == nullptr || used_ == block_rows_) {
    // The copies of a block follow it. Without memory no exception is thrown, as it would end the training.
    void* const memory = ::operator new(sizeof(Block) + block_rows_ * copy_bytes_, std::nothrow);
    if (memory == nullptr) return nullptr;
    blocks_ = new (memory) Block{blocks_};
    ++num_blocks_;
    used_ = 0;
  }
  return reinterpret_cast<Copy*>(reinterpret_cast<char*>(blocks_ + 1) + used_++ * copy_bytes_);
}

void RowSnapshot::Free(Copy* first, Copy* last) {
  const MutexLock lock(mutex_);
  last->next = free_;
  free_ = first;
}

Status RowSnapshot::status() const {
  if (!lost_.load(std::memory_order_acquire)) return OkStatus();
  return ResourceExhausted("no memory for copies of the rows that change while they are saved");
}

int64_t RowSnapshot::copied_bytes() const {
  const MutexLock lock(mutex_);
  return num_blocks_ * block_rows_ * copy_bytes_;
}

}  // namespace lockstep
