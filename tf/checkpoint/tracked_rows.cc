#include "tf/checkpoint/tracked_rows.h"

#include "tf/bridge/convert.h"

namespace lockstep {

namespace tf = ::tensorflow;

namespace {

RowChanges ChangesOf(const tf::Tensor& rows, const ParallelFor& parallel) {
  const int64_t count = rows.dim_size(0);
  const int64_t row_bytes = count == 0 ? 0 : static_cast<int64_t>(rows.TotalBytes()) / count;
  return {static_cast<const char*>(Data(rows)), count, row_bytes, parallel};
}

}  // namespace

Result<TrackedRows::Pointer> TrackedRows::Of(tf::OpKernelContext* context, const tf::ResourceHandle& variable) {
  TrackedRows* found = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(context->resource_manager()->LookupOrCreate<TrackedRows>(
      variable.container(), variable.name(), &found, [](TrackedRows** made) {
        *made = new TrackedRows;
        return absl::OkStatus();
      })));
  return Pointer(found);
}

TrackedRows::Pointer TrackedRows::Find(tf::OpKernelContext* context, const tf::ResourceHandle& variable) {
  TrackedRows* found = nullptr;
  const absl::Status status = context->resource_manager()->Lookup(variable.container(), variable.name(), &found);
  return Pointer(status.ok() ? found : nullptr);
}

void TrackedRows::Track(const tf::Tensor& rows, const ParallelFor& parallel) {
  const MutexLock lock(mutex_);
  if (!rows_) rows_.emplace(ChangesOf(rows, parallel));
}

bool TrackedRows::tracks() const {
  const MutexLock lock(mutex_);
  return rows_.has_value();
}

std::optional<int64_t> TrackedRows::checkpoint_id() const {
  const MutexLock lock(mutex_);
  return checkpoint_id_;
}

std::optional<int64_t> TrackedRows::known_checkpoint() const {
  const MutexLock lock(mutex_);
  return known_ ? checkpoint_id_ : std::nullopt;
}

void TrackedRows::FindChanges(RowRange part, const char* rows, std::vector<RowChanges::Change>* changes) const {
  const MutexLock lock(mutex_);
  if (rows_) rows_->Find(part, rows, changes);
}

void TrackedRows::Take(RowRange part, const char* rows) {
  const MutexLock lock(mutex_);
  if (!rows_) return;
  known_ = false;
  rows_->Accept(part, rows);
}

void TrackedRows::Saved(int64_t checkpoint_id, std::span<const RowChanges::Change> changes) {
  const MutexLock lock(mutex_);
  checkpoint_id_ = checkpoint_id;
  known_ = rows_.has_value();
  if (rows_) rows_->Accept(changes);
}

void TrackedRows::Restored(std::optional<int64_t> checkpoint_id) {
  const MutexLock lock(mutex_);
  checkpoint_id_ = checkpoint_id;
  known_ = false;
  rows_.reset();
}

void TrackedRows::RestoredIncrement(std::optional<int64_t> checkpoint_id, const std::vector<int64_t>* changed,
                                    const tf::Tensor& rows, const ParallelFor& parallel) {
  const MutexLock lock(mutex_);
  checkpoint_id_ = checkpoint_id;
  if (!known_ || changed == nullptr) {
    rows_.reset();
    rows_.emplace(ChangesOf(rows, parallel));
    known_ = true;
    return;
  }
  const auto* const data = static_cast<const char*>(Data(rows));
  for (const int64_t row : *changed) rows_->Accept({row, row + 1}, data + row * rows_->row_bytes());
}

}  // namespace lockstep
