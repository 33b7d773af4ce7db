#include "tf/embedding/variable_moment.h"

#include <algorithm>
#include <atomic>
#include <unordered_map>
#include <utility>

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

// The moments of the process, by their variables: one map for all sessions, which share variables.
struct Moments {
  std::atomic<int64_t> count{0};
  std::mutex mutex;
  std::unordered_map<const tf::Var*, std::weak_ptr<VariableMoment>> of;  // guarded by mutex
};

// Never destroyed: a thread that saves may outlast the program.
Moments& TheMoments() {
  static Moments* const moments = new Moments;
  return *moments;
}

std::shared_ptr<VariableMoment> MomentOf(const tf::Var* variable) {
  Moments& moments = TheMoments();
  if (moments.count.load(std::memory_order_acquire) == 0) return nullptr;
  const std::lock_guard lock(moments.mutex);
  const auto found = moments.of.find(variable);
  return found == moments.of.end() ? nullptr : found->second.lock();
}

int64_t RowsOf(const tf::Tensor& value) { return value.dims() == 0 ? 1 : value.dim_size(0); }

int64_t RowBytesOf(const tf::Tensor& value) {
  return RowsOf(value) == 0 ? 0 : static_cast<int64_t>(value.TotalBytes()) / RowsOf(value);
}

}  // namespace

Result<std::shared_ptr<VariableMoment>> VariableMoment::Begin(tf::core::RefCountPtr<tf::Var> variable) {
  tf::Var* const key = variable.get();
  const tf::mutex_lock lock(*key->mu());
  if (!key->is_initialized || !key->tensor()->IsInitialized()) return FailedPrecondition("it is not initialized");
  const bool owned = key->tensor()->RefCountIsOne();
  tf::Tensor value = *key->tensor();
  if (!tf::DataTypeCanUseMemcpy(value.dtype())) value = tf::tensor::DeepCopy(value);
  key->copy_on_read_mode.store(false);
  std::shared_ptr<VariableMoment> moment(new VariableMoment(std::move(variable), std::move(value), owned));
  // With the variable's mutex held: an update that finds a second owner and no moment copies all of the variable.
  Moments& moments = TheMoments();
  const std::lock_guard moments_lock(moments.mutex);
  moments.of[key] = moment;
  moments.count.fetch_add(1, std::memory_order_release);
  return moment;
}

Result<std::shared_ptr<VariableMoment>> VariableMoment::BeginOfAny(tf::core::RefCountPtr<tf::Var> variable,
                                                                   const ParallelFor& parallel, CopyMemory* memory) {
  {
    const tf::tf_shared_lock lock(*variable->mu());
    const tf::Tensor& value = *variable->tensor();
    // Sparse updates, and sparse reads, have put the variable into this mode; others take it out of it.
    const bool changes_by_rows = variable->copy_on_read_mode.load();
    if (variable->is_initialized && value.IsInitialized() && !changes_by_rows &&
        static_cast<int64_t>(value.TotalBytes()) <= kMostCopiedBytes) {
      LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor copy, memory->Copy(value, parallel));
      return std::shared_ptr<VariableMoment>(new VariableMoment(nullptr, std::move(copy), false));
    }
  }
  memory->Release();
  return Begin(std::move(variable));
}

VariableMoment::VariableMoment(tf::core::RefCountPtr<tf::Var> variable, tf::Tensor value, bool owned)
    : variable_(std::move(variable)),
      dtype_(value.dtype()),
      shape_(value.shape()),
      row_bytes_(RowBytesOf(value)),
      owned_(owned),
      value_(std::move(value)) {
  if (tf::DataTypeCanUseMemcpy(value_.dtype())) rows_.emplace(Data(value_), RowsOf(value_), row_bytes_);
}

void VariableMoment::End() {
  // Freed after the mutex is released: the rows that were copied aside, and a value that the variable no longer has.
  std::optional<RowMoment> rows;
  tf::Tensor unshared;
  std::optional<tf::mutex_lock> lock;
  if (variable_ != nullptr) lock.emplace(*variable_->mu());
  rows.swap(rows_);
  if (value_.RefCountIsOne()) unshared = std::move(value_);
  // A value that the variable still has is left before: an update that finds a second owner copies all of it.
  value_ = tf::Tensor();
}

VariableMoment::~VariableMoment() {
  if (variable_ == nullptr) return;
  Moments& moments = TheMoments();
  const std::lock_guard lock(moments.mutex);
  // A later moment of the same variable may have taken the place.
  const auto found = moments.of.find(variable_.get());
  if (found != moments.of.end() && found->second.expired()) moments.of.erase(found);
  moments.count.fetch_sub(1, std::memory_order_release);
}

bool VariableMoment::BeforeChange(tf::Var* variable, std::span<const uint32_t> rows) {
  const std::shared_ptr<VariableMoment> moment = MomentOf(variable);
  // The owners of the memory are the variable and the moment.
  if (moment == nullptr || !moment->owned_ || !moment->rows_ || variable->tensor()->NumElements() == 0 ||
      variable->copy_on_read_mode.load() || !variable->tensor()->SharesBufferWith(moment->value_) ||
      variable->tensor()->RefCount() != 2) {
    return false;
  }
  moment->rows_->BeforeChange(rows);
  return true;
}

template <typename ReadPart>
void VariableMoment::InParts(RowRange rows, const ReadPart& read) {
  const int64_t step = std::max<int64_t>(1, kReadBytes / std::max<int64_t>(1, row_bytes_));
  for (int64_t begin = rows.begin; begin < rows.end; begin += step) {
    const RowRange part{begin, std::min(begin + step, rows.end)};
    std::optional<tf::tf_shared_lock> lock;
    if (variable_ != nullptr) lock.emplace(*variable_->mu());
    read(part);
  }
}

void VariableMoment::Read(RowRange rows, char* out) {
  InParts(rows, [&](RowRange part) { rows_->Read(part, out + (part.begin - rows.begin) * row_bytes_); });
}

void VariableMoment::Peek(RowRange rows, char* out) {
  InParts(rows, [&](RowRange part) { rows_->Peek(part, out + (part.begin - rows.begin) * row_bytes_); });
}

tf::Tensor VariableMoment::ReadAll() {
  if (!rows_) return value_;
  tf::Tensor whole(dtype_, shape_);
  Read({0, RowsOf(whole)}, static_cast<char*>(Data(whole)));
  return whole;
}

}  // namespace lockstep
