#include "tf/table/table_resource.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/strings.h"
#include "core/capi/capi.h"
#include "tf/bridge/convert.h"

namespace lockstep {

namespace tf = ::tensorflow;

namespace {

std::span<const int64_t> Int64s(const tf::Tensor& tensor) {
  return {static_cast<const int64_t*>(Data(tensor)), static_cast<size_t>(tensor.NumElements())};
}

// Widens int32 keys; int64 keys are used in place.
std::vector<int64_t> Widened(const tf::Tensor& keys) {
  const auto* values = static_cast<const int32_t*>(Data(keys));
  return {values, values + keys.NumElements()};
}

std::vector<std::string_view> Views(const tf::Tensor& keys) {
  const auto strings = keys.flat<tf::tstring>();
  std::vector<std::string_view> views(strings.size());
  for (int64_t i = 0; i < strings.size(); ++i) views[i] = {strings(i).data(), strings(i).size()};
  return views;
}

}  // namespace

Result<DynamicTableResource*> DynamicTableResource::Create(const DynamicTableOptions& options, bool string_keys,
                                                           const KeyPlacement& placement) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::unique_ptr<DynamicTable> table, DynamicTable::Create(options));
  std::unique_ptr<StringKeys> strings;
  if (string_keys) {
    LOCKSTEP_ASSIGN_OR_RETURN(strings, StringKeys::Create());
  }
  return new DynamicTableResource(std::move(table), std::move(strings), placement);
}

DynamicTableResource::DynamicTableResource(std::unique_ptr<DynamicTable> table, std::unique_ptr<StringKeys> strings,
                                           const KeyPlacement& placement)
    : table_(std::move(table)),
      strings_(std::move(strings)),
      placement_(placement),
      counters_(ProcessTelemetry()->Table(name())) {}

Status DynamicTableResource::CheckKeys(const tf::Tensor& keys) const {
  if ((keys.dtype() == tf::DT_STRING) == (strings_ != nullptr)) return OkStatus();
  return InvalidArgument(absl::StrCat("table '", name(), "': keys are ", tf::DataTypeString(keys.dtype()), ", wanted ",
                                      strings_ != nullptr ? "string" : "int64 or int32"));
}

template <typename Use>
Status DynamicTableResource::WithKeys(const tf::Tensor& keys, Use&& use) const {
  LOCKSTEP_RETURN_IF_ERROR(CheckKeys(keys));
  if (keys.dtype() == tf::DT_INT64) return use(Int64s(keys));
  if (keys.dtype() == tf::DT_INT32) return use(std::span<const int64_t>(Widened(keys)));
  const ReaderLock naming(naming_);
  std::vector<int64_t> found(keys.NumElements());
  strings_->Find(Views(keys), found.data(), RunInline);
  return use(std::span<const int64_t>(found));
}

Status DynamicTableResource::Resolve(const tf::Tensor& keys, const tf::Tensor& times, float* rows, int64_t* numbers,
                                     const ParallelFor& parallel) {
  LOCKSTEP_RETURN_IF_ERROR(CheckKeys(keys));
  if (times.NumElements() != 0 && times.NumElements() != keys.NumElements()) {
    return InvalidArgument(
        absl::StrCat("table '", name(), "': ", times.NumElements(), " counts for ", keys.NumElements(), " keys"));
  }
  std::vector<int32_t> counts;
  for (const int64_t count : Int64s(times)) {
    counts.push_back(static_cast<int32_t>(std::clamp<int64_t>(count, 0, std::numeric_limits<int32_t>::max())));
  }
  std::vector<int64_t> others;  // keys that are not int64 already
  std::optional<ReaderLock<SharedMutex>> naming;
  if (keys.dtype() == tf::DT_INT32) {
    others = Widened(keys);
  } else if (keys.dtype() == tf::DT_STRING) {
    naming.emplace(naming_);
    others.resize(keys.NumElements());
    LOCKSTEP_RETURN_IF_ERROR(strings_->Intern(Views(keys), others.data(), parallel));
  }
  const std::span<const int64_t> found = keys.dtype() == tf::DT_INT64 ? Int64s(keys) : others;
  LOCKSTEP_ASSIGN_OR_RETURN(ResolvedKeys batch, table_->Resolve(found, now(), rows, parallel, counts));
  const std::span<const uint32_t> resolved = batch.rows();
  // Rows are below 2^31, and kNoRow becomes kNotAdmitted.
  static_assert(static_cast<int32_t>(kNoRow) == kNotAdmitted);
  for (size_t i = 0; i < resolved.size(); ++i) numbers[i] = static_cast<int32_t>(resolved[i]);
  const bool forgets = strings_ != nullptr && table_->options().admission.bloom();
  // Otherwise rows belong to their keys for good, and the step in which a key was seen does not matter.
  const bool keeps = table_->options().eviction.any() || table_->options().record_version;
  if (!forgets && !keeps) return OkStatus();
  const MutexLock lock(mutex_);
  resolved_ = true;
  for (size_t i = 0; forgets && i < resolved.size(); ++i) {
    if (resolved[i] == kNoRow) unadmitted_.push_back(found[i]);
  }
  if (keeps) batches_.push_back(std::move(batch));
  if (batches_.size() > kMostBatches) batches_.pop_front();
  return OkStatus();
}

Status DynamicTableResource::Lookup(const tf::Tensor& keys, float* rows, const ParallelFor& parallel) const {
  return WithKeys(keys, [&](std::span<const int64_t> found) {
    table_->Lookup(found, rows, parallel);
    return OkStatus();
  });
}

Status DynamicTableResource::Find(const tf::Tensor& keys, int64_t* numbers, const ParallelFor& parallel) const {
  return WithKeys(keys, [&](std::span<const int64_t> found) {
    std::vector<uint32_t> rows(found.size());
    table_->Find(found, rows.data(), parallel);
    std::transform(rows.begin(), rows.end(), numbers,
                   [](uint32_t row) { return row == kNoRow ? kNotAdmitted : static_cast<int64_t>(row); });
    return OkStatus();
  });
}

Status DynamicTableResource::GetFrequency(const tf::Tensor& keys, int64_t* counts) const {
  return WithKeys(keys, [&](std::span<const int64_t> found) { return table_->GetFrequency(found, counts); });
}

Status DynamicTableResource::GetVersion(const tf::Tensor& keys, int64_t* counts) const {
  return WithKeys(keys, [&](std::span<const int64_t> found) { return table_->GetVersion(found, counts); });
}

Status DynamicTableResource::GetSeconds(const tf::Tensor& keys, int64_t* counts) const {
  return WithKeys(keys, [&](std::span<const int64_t> found) { return table_->GetSeconds(found, counts); });
}

Status DynamicTableResource::Update(std::span<const uint32_t> numbers, const float* gradients, const UpdateRule& rule,
                                    std::span<const SlotSpec> slots, bool all_rows, const ParallelFor& parallel) {
  std::vector<int> slot_numbers;
  for (const SlotSpec& slot : slots) {
    LOCKSTEP_ASSIGN_OR_RETURN(slot_numbers.emplace_back(), table_->AddSlot(slot.name, slot.initial));
  }
  return table_->Update(numbers, gradients, rule, slot_numbers, NextRounding(), parallel, all_rows);
}

StepInfo DynamicTableResource::now() const {
  // Seconds fit until 2106, and a wrap-around between two lookups of a key does not matter. `std::time` reads a coarse
  // clock: for some milliseconds it still gives the second that has passed.
  const auto time = std::chrono::system_clock::now().time_since_epoch();
  return {step_.load(), static_cast<uint32_t>(std::chrono::duration_cast<std::chrono::seconds>(time).count())};
}

void DynamicTableResource::EndStep(std::optional<int64_t> step, std::optional<int64_t> run) {
  std::deque<ResolvedKeys> gone;
  std::vector<int64_t> unadmitted;
  {
    const MutexLock lock(mutex_);
    if (run && run == last_run_) return;
    const int64_t present = step_;
    const bool is_later = step && *step > present;
    if (!resolved_ && !is_later) return;
    resolved_ = false;
    last_run_ = run;
    gone.swap(before_);
    before_.swap(batches_);
    unadmitted.swap(unadmitted_);
    // The table's clock is behind the program's if the table is new in the program or was restored. Keys that were seen
    // in this step get the step before the next one.
    const int64_t next = step.value_or(present + 1);
    if (next > present + 1) {
      for (const ResolvedKeys& batch : before_) table_->Stamp(batch, {next - 1, now().seconds});
    }
    step_ = next;
  }
  gone.clear();
  if (strings_ == nullptr) {
    if (table_->options().eviction.any()) table_->Evict(now());
    return;
  }
  // No thread may name a string between the removal of its key and the removal of the string.
  const WriterLock naming(naming_);
  if (table_->options().eviction.any()) strings_->Remove(table_->Evict(now()));
  ForgetStrings(unadmitted);
}

Status DynamicTableResource::Evict(bool last_lookup, const std::function<Status(const TableRows& rows)>& use) {
  if (!table_->options().eviction.budget()) {
    return FailedPrecondition(
        absl::StrCat("table '", name(), "': got no budget to keep, wanted max_keys or max_bytes"));
  }
  std::deque<ResolvedKeys> gone, before;
  if (last_lookup) {
    const MutexLock lock(mutex_);
    before.swap(before_);
    gone.swap(batches_);
    if (!gone.empty()) {
      batches_.push_back(std::move(gone.back()));
      gone.pop_back();
    }
  }
  before.clear();
  gone.clear();
  std::optional<WriterLock<SharedMutex>> naming;
  if (strings_ != nullptr) naming.emplace(naming_);
  TableRows rows;
  const std::vector<int64_t> keys = table_->Evict(now(), &rows);
  Status status = use(rows);
  if (strings_ != nullptr) strings_->Remove(keys);
  return status;
}

void DynamicTableResource::ForgetStrings(std::span<const int64_t> keys) {
  std::vector<int64_t> gone;
  for (const int64_t key : keys) {
    if (!table_->Contains(key)) gone.push_back(key);
  }
  std::sort(gone.begin(), gone.end());
  gone.erase(std::unique(gone.begin(), gone.end()), gone.end());
  if (!gone.empty()) strings_->Remove(gone);
}

Result<int64_t> DynamicTableResource::Remove(const tf::Tensor& keys) {
  LOCKSTEP_RETURN_IF_ERROR(CheckKeys(keys));
  if (keys.dtype() == tf::DT_INT64) return table_->Remove(Int64s(keys));
  if (keys.dtype() == tf::DT_INT32) return table_->Remove(Widened(keys));
  const WriterLock naming(naming_);
  std::vector<int64_t> found(keys.NumElements());
  strings_->Find(Views(keys), found.data(), RunInline);
  const int64_t removed = table_->Remove(found);
  strings_->Remove(found);
  return removed;
}

Status DynamicTableResource::Restore(const tf::Tensor& keys, TableRows part, const RestoreOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(CheckKeys(keys));
  const ReaderLock naming(naming_);
  if (keys.dtype() == tf::DT_STRING) {
    part.keys.resize(keys.NumElements());
    LOCKSTEP_RETURN_IF_ERROR(strings_->Intern(Views(keys), part.keys.data(), RunInline));
  } else if (keys.dtype() == tf::DT_INT32) {
    part.keys = Widened(keys);
  } else {
    part.keys.assign(Int64s(keys).begin(), Int64s(keys).end());
  }
  // Later lookups must have later steps than all of these.
  for (const int64_t version : part.versions) step_ = std::max(step_.load(), version);
  return table_->Restore(part, options);
}

Status DynamicTableResource::BeginSnapshot(Snapshot::Kind kind) {
  // Keys and their strings belong to one snapshot.
  const WriterLock naming(naming_);
  const MutexLock lock(mutex_);
  if (snapshot_.use_count() > 1) {
    return FailedPrecondition(absl::StrCat("table '", name(), "': a checkpoint of it is still being written"));
  }
  snapshot_.reset();
  LOCKSTEP_ASSIGN_OR_RETURN(snapshot_, Snapshot::Begin(*table_, kind));
  if (strings_ != nullptr) strings_->BeginSnapshot();
  return OkStatus();
}

void DynamicTableResource::SnapshotRead() {
  if (strings_ != nullptr) strings_->EndSnapshot();
}

Result<std::shared_ptr<Snapshot>> DynamicTableResource::snapshot() {
  const MutexLock lock(mutex_);
  if (snapshot_ == nullptr) {
    return FailedPrecondition(absl::StrCat("table '", name(), "': no snapshot has begun, or its save failed"));
  }
  return snapshot_;
}

Status DynamicTableResource::EndSnapshot(int64_t checkpoint_id) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::shared_ptr<Snapshot> read, snapshot());
  LOCKSTEP_RETURN_IF_ERROR(read->Commit());
  read.reset();
  const MutexLock lock(mutex_);
  snapshot_.reset();
  checkpoint_id_ = checkpoint_id;
  return OkStatus();
}

std::optional<int64_t> DynamicTableResource::checkpoint_id() const {
  const MutexLock lock(mutex_);
  return checkpoint_id_;
}

void DynamicTableResource::set_checkpoint_id(std::optional<int64_t> checkpoint_id) {
  const MutexLock lock(mutex_);
  checkpoint_id_ = checkpoint_id;
}

void DynamicTableResource::DropSnapshot() {
  const MutexLock lock(mutex_);
  if (snapshot_.use_count() > 1) return;
  SnapshotRead();
  snapshot_.reset();
}

void DynamicTableResource::RemoveNumbers(std::span<const int64_t> keys) {
  const WriterLock naming(naming_);
  table_->Remove(keys);
  if (strings_ != nullptr) strings_->Remove(keys);
}

Result<std::vector<uint32_t>> DynamicTableResource::Numbers(const tf::Tensor& numbers) {
  const std::span<const int64_t> given = Int64s(numbers);
  std::vector<uint32_t> result(given.size());
  const auto fits = [](int64_t number) { return number >= kNotAdmitted && number < Slab::kMaxRows; };
  // A valid number plus one is below 2^31. This needs no comparison per number, which would not be vectorised.
  static_assert(Slab::kMaxRows == (int64_t{1} << 31) - 1);
  uint64_t bits = 0;
  for (size_t i = 0; i < given.size(); ++i) {
    bits |= static_cast<uint64_t>(given[i]) + 1;
    result[i] = static_cast<uint32_t>(given[i]);  // kNotAdmitted becomes kNoRow
  }
  if (bits >> 31 != 0) {
    const auto wrong = std::find_if_not(given.begin(), given.end(), fits);
    return InvalidArgument(
        StrCat("row number ", *wrong, " at position ", wrong - given.begin(), ", wanted -1 to 2^31 - 2"));
  }
  return result;
}

std::string DynamicTableResource::DebugString() const {
  return absl::StrCat("dynamic table '", name(), "' of ", table_->total_count(), " keys, dimension ", dim());
}

int64_t DynamicTableResource::MemoryUsed() const {
  return table_->bytes() + (strings_ == nullptr ? 0 : strings_->bytes());
}

Result<tf::core::RefCountPtr<DynamicTableResource>> TableOf(tf::OpKernelContext* context, int index) {
  tf::core::RefCountPtr<DynamicTableResource> table;
  const tf::ResourceHandle& handle = tf::HandleFromInput(context, index);
  const absl::Status status = tf::LookupResource(context, handle, &table);
  if (absl::IsNotFound(status)) {
    return FailedPrecondition(absl::StrCat("dynamic table '", handle.name(), "' has not been initialized"));
  }
  LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(status));
  return table;
}

}  // namespace lockstep
