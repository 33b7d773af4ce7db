#include "tf/variable/variable_snapshot.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <unordered_map>
#include <utility>

#include "core/base/mutex.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tensorflow/core/framework/types.h"
#include "tf/bridge/convert.h"

namespace lockstep {

namespace tf = ::tensorflow;

namespace {

// The bytes that are read at a time. Updates of the variable wait meanwhile; if the system stops the reading thread in
// between, which has a low priority, they wait for it. So it holds the mutex for some microseconds only.
constexpr int64_t kReadBytes = int64_t{64} << 10;

// The largest variable that is copied at once.
constexpr int64_t kMostCopiedBytes = int64_t{256} << 20;

// The snapshots of the process, by their variables: one map for all sessions, which share variables.
struct Snapshots {
  std::atomic<int64_t> count{0};
  Mutex mutex;
  std::unordered_map<const tf::Var*, std::weak_ptr<VariableSnapshot>> of LOCKSTEP_GUARDED_BY(mutex);
};

// Never destroyed: a thread that saves may outlast the program.
Snapshots& TheSnapshots() {
  static Snapshots* const snapshots = new Snapshots;
  return *snapshots;
}

std::shared_ptr<VariableSnapshot> SnapshotOf(const tf::Var* variable) {
  Snapshots& snapshots = TheSnapshots();
  if (snapshots.count.load(std::memory_order_acquire) == 0) return nullptr;
  const MutexLock lock(snapshots.mutex);
  const auto found = snapshots.of.find(variable);
  return found == snapshots.of.end() ? nullptr : found->second.lock();
}

int64_t RowsOf(const tf::Tensor& value) { return value.dims() == 0 ? 1 : value.dim_size(0); }

int64_t RowBytesOf(const tf::Tensor& value) {
  return RowsOf(value) == 0 ? 0 : static_cast<int64_t>(value.TotalBytes()) / RowsOf(value);
}

}  // namespace

Result<std::shared_ptr<VariableSnapshot>> VariableSnapshot::Begin(tf::core::RefCountPtr<tf::Var> variable) {
  tf::Var* const key = variable.get();
  const tf::mutex_lock lock(*key->mu());
  if (!key->is_initialized || !key->tensor()->IsInitialized()) return FailedPrecondition("it is not initialized");
  const bool owned = key->tensor()->RefCountIsOne();
  tf::Tensor value = *key->tensor();
  if (!tf::DataTypeCanUseMemcpy(value.dtype())) value = tf::tensor::DeepCopy(value);
  LOCKSTEP_ASSIGN_OR_RETURN(auto rows, BeginRows(value));
  key->copy_on_read_mode.store(false);
  std::shared_ptr<VariableSnapshot> snapshot(
      new VariableSnapshot(std::move(variable), std::move(value), owned, std::move(rows)));
  // With the variable's mutex held: an update that finds a second owner and no snapshot copies all of the variable.
  Snapshots& snapshots = TheSnapshots();
  const MutexLock map_lock(snapshots.mutex);
  snapshots.of[key] = snapshot;
  snapshots.count.fetch_add(1, std::memory_order_release);
  return snapshot;
}

Result<std::shared_ptr<VariableSnapshot>> VariableSnapshot::BeginOfAny(tf::core::RefCountPtr<tf::Var> variable,
                                                                       const ParallelFor& parallel,
                                                                       CopyMemory* memory) {
  {
    const tf::tf_shared_lock lock(*variable->mu());
    const tf::Tensor& value = *variable->tensor();
    // Sparse updates, and sparse reads, have put the variable into this mode; others take it out of it.
    const bool changes_by_rows = variable->copy_on_read_mode.load();
    if (variable->is_initialized && value.IsInitialized() && !changes_by_rows &&
        static_cast<int64_t>(value.TotalBytes()) <= kMostCopiedBytes) {
      LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor copy, memory->Copy(value, parallel));
      LOCKSTEP_ASSIGN_OR_RETURN(auto rows, BeginRows(copy));
      return std::shared_ptr<VariableSnapshot>(new VariableSnapshot(nullptr, std::move(copy), false, std::move(rows)));
    }
  }
  memory->Release();
  return Begin(std::move(variable));
}

Result<std::unique_ptr<RowSnapshot>> VariableSnapshot::BeginRows(const tf::Tensor& value) {
  if (!tf::DataTypeCanUseMemcpy(value.dtype())) return std::unique_ptr<RowSnapshot>();
  const int64_t bytes = RowBytesOf(value);
  return RowSnapshot::Begin({{RowView::Contiguous(Data(value), bytes), bytes}}, RowsOf(value),
                            RowSnapshot::Order::kByNumber);
}

VariableSnapshot::VariableSnapshot(tf::core::RefCountPtr<tf::Var> variable, tf::Tensor value, bool owned,
                                   std::unique_ptr<RowSnapshot> rows)
    : variable_(std::move(variable)),
      dtype_(value.dtype()),
      shape_(value.shape()),
      row_bytes_(RowBytesOf(value)),
      owned_(owned),
      value_(std::move(value)),
      rows_(std::move(rows)) {}

void VariableSnapshot::End() {
  // Freed after the mutex is released: the rows that were copied aside, and a value that the variable no longer has.
  std::unique_ptr<RowSnapshot> rows;
  tf::Tensor unshared;
  std::optional<tf::mutex_lock> lock;
  if (variable_ != nullptr) lock.emplace(*variable_->mu());
  rows.swap(rows_);
  if (value_.RefCountIsOne()) unshared = std::move(value_);
  // A value that the variable still has is left before: an update that finds a second owner copies all of it.
  value_ = tf::Tensor();
}

VariableSnapshot::~VariableSnapshot() {
  if (variable_ == nullptr) return;
  Snapshots& snapshots = TheSnapshots();
  const MutexLock lock(snapshots.mutex);
  // A later snapshot of the same variable may have taken the place.
  const auto found = snapshots.of.find(variable_.get());
  if (found != snapshots.of.end() && found->second.expired()) snapshots.of.erase(found);
  snapshots.count.fetch_sub(1, std::memory_order_release);
}

bool VariableSnapshot::BeforeChange(tf::Var* variable, std::span<const uint32_t> rows) {
  const std::shared_ptr<VariableSnapshot> snapshot = SnapshotOf(variable);
  // The owners of the memory are the variable and the snapshot.
  if (snapshot == nullptr || !snapshot->owned_ || !snapshot->rows_ || variable->tensor()->NumElements() == 0 ||
      variable->copy_on_read_mode.load() || !variable->tensor()->SharesBufferWith(snapshot->value_) ||
      variable->tensor()->RefCount() != 2) {
    return false;
  }
  snapshot->rows_->BeforeChange(rows);
  return true;
}

template <typename ReadPart>
void VariableSnapshot::InParts(RowRange rows, const ReadPart& read) {
  const int64_t step = std::max<int64_t>(1, kReadBytes / std::max<int64_t>(1, row_bytes_));
  for (int64_t begin = rows.begin; begin < rows.end; begin += step) {
    const RowRange part{begin, std::min(begin + step, rows.end)};
    std::optional<tf::tf_shared_lock> lock;
    if (variable_ != nullptr) lock.emplace(*variable_->mu());
    read(part);
  }
}

void VariableSnapshot::Read(RowRange rows, char* out) {
  InParts(rows,
          [&](RowRange part) { rows_->Read(part.begin, part.end, out + (part.begin - rows.begin) * row_bytes_); });
}

void VariableSnapshot::Peek(RowRange rows, char* out) {
  InParts(rows,
          [&](RowRange part) { rows_->Peek(part.begin, part.end, out + (part.begin - rows.begin) * row_bytes_); });
}

tf::Tensor VariableSnapshot::ReadAll() {
  if (!rows_) return value_;
  tf::Tensor whole(dtype_, shape_);
  Read({0, RowsOf(whole)}, static_cast<char*>(Data(whole)));
  return whole;
}

Status VariableSnapshot::status() const { return rows_ == nullptr ? OkStatus() : rows_->status(); }

}  // namespace lockstep
