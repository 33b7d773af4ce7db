// Resolves a batch, in groups of 32 keys. All keys of a group are located, which prefetches their buckets. Meanwhile
// the keys of the former group are searched, which prefetches their rows and counts; then rows are copied out. A
// missing key is inserted at once. If keys have to be admitted, it is counted and remembered instead; remembered keys
// are judged when the whole batch has been counted. So each place of a key in the batch gets the same result.
#include <algorithm>
#include <array>
#include <utility>

#include "core/base/mutex.h"
#include "core/base/strings.h"
#include "core/embedding/dynamic_table.h"
#include "core/embedding/inserter.h"
#include "core/embedding/search.h"

namespace lockstep {
namespace {

// Collects the first error of ranges that run in parallel.
class FirstError {
 public:
  void Add(Status status) {
    if (status.ok()) return;
    const MutexLock lock(mutex_);
    if (status_.ok()) status_ = std::move(status);
  }
  Status Get() {
    const MutexLock lock(mutex_);
    return status_;
  }

 private:
  Mutex mutex_;
  Status status_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace

ResolvedKeys& ResolvedKeys::operator=(ResolvedKeys&& other) noexcept {
  std::swap(table_, other.table_);
  std::swap(rows_, other.rows_);
  std::swap(guard_, other.guard_);
  return *this;
}

ResolvedKeys::~ResolvedKeys() {
  if (rows_ == nullptr) return;
  const MutexLock lock(table_->batches_mutex_);
  table_->batches_.erase(rows_.get());
  // Its memory has been touched, so the next batch does not wait for pages.
  table_->spare_rows_ = std::move(rows_);
}

// The arguments of a call of Resolve.
struct DynamicTable::Batch {
  std::span<const int64_t> keys;
  std::span<const int32_t> counts;
  StepInfo step;
  uint32_t* rows;  // [N]
  float* out;      // [N, D] or null

  int64_t CountOf(int64_t place) const { return counts.empty() ? 1 : counts[place]; }
};

Status DynamicTable::ResolveRange(const Batch& batch, int64_t begin, int64_t end, std::vector<uint32_t>* unjudged) {
  std::fill(batch.rows + begin, batch.rows + end, kNoRow);
  Inserter rows(*this, *admitted_);
  Inserter candidates(*this, candidates_ == nullptr ? *admitted_ : *candidates_);
  Status status;
  // Values that are used for every key are kept in registers.
  const RowReader reader = admitted_->reader();
  const bool watched = admitted_->watched(), counts = admitted_->counts(), reads = batch.out != nullptr;
  const bool streams = reads && reader.Streams(static_cast<int64_t>(batch.keys.size()), batch.out);
  std::array<const char*, KeyIndex::kGroup> data;  // of the rows of a group
  const auto prefetch = [&](int64_t i, uint32_t value) {
    if (!IsRow(value)) return;
    if (reads) data[i] = reader.Prefetch(value);
    if (counts) admitted_->PrefetchCounts(value);
  };
  ForEachGroup(index_, batch.keys, begin, end, prefetch, [&](int64_t first, int64_t count, const uint32_t* values) {
    gate_.AssertReaderHeld();  // by the caller
    for (int64_t i = 0; i < count && status.ok(); ++i) {
      const int64_t place = first + i;
      const uint32_t value = values[i];
      if (IsRow(value)) [[likely]] {
        if (watched) admitted_->BeforeChange(value);
        if (counts) admitted_->Touch(value, batch.CountOf(place), batch.step.step, batch.step.seconds);
        batch.rows[place] = value;
        if (streams) {
          reader.Stream(data[i], batch.out + place * reader.dim);
        } else if (reads) {
          reader.Copy(data[i], batch.out + place * reader.dim);
        }
      } else if (value == KeyIndex::kAbsent && filter_ != nullptr) {
        filter_->Add(batch.keys[place], batch.CountOf(place));
        unjudged->push_back(static_cast<uint32_t>(place));
      } else {
        status = ResolveNew(batch, place, value, candidates_ == nullptr ? &rows : &candidates, unjudged);
      }
    }
  });
  if (streams) StreamFence();
  return status;
}

// Handles a key that was not admitted when its group was searched: inserts it if it is missing, and counts it.
Status DynamicTable::ResolveNew(const Batch& batch, int64_t place, uint32_t value, Inserter* inserter,
                                std::vector<uint32_t>* unjudged) {
  if (value == KeyIndex::kAbsent) {
    LOCKSTEP_ASSIGN_OR_RETURN(value, inserter->Insert(batch.keys[place]));
  }
  RowStore& store = StoreOf(value);
  const uint32_t number = NumberOf(value);
  if (store.watched()) store.BeforeChange(number);
  if (store.counts()) store.Touch(number, batch.CountOf(place), batch.step.step, batch.step.seconds);
  if (IsRow(value)) {
    batch.rows[place] = value;
    if (batch.out != nullptr) admitted_->reader().Copy(value, batch.out + place * options_.dim);
  } else {
    unjudged->push_back(static_cast<uint32_t>(place));
  }
  return OkStatus();
}

Status DynamicTable::JudgeRange(const Batch& batch, std::span<const uint32_t> places) {
  Inserter rows(*this, *admitted_);
  Removed removed;
  Status status;
  for (const uint32_t place : places) {
    const int64_t key = batch.keys[place];
    const KeyIndex::ReadGuard guard = index_.Read();
    uint32_t value = index_.Find(key);
    uint32_t counted_as = KeyIndex::kAbsent;
    int64_t count = 0;
    if (IsCandidate(value)) {
      counted_as = value;
      count = candidates_->frequency(NumberOf(value));
    } else if (value == KeyIndex::kAbsent && filter_ != nullptr) {
      count = filter_->Count(key);
    }
    if (!IsRow(value) && count >= options_.admission.min_frequency) {
      if (counted_as != KeyIndex::kAbsent) candidates_->BeforeChange(NumberOf(counted_as));
      Result<uint32_t> inserted = rows.Insert(key, counted_as);
      if (!inserted.ok()) {
        status = inserted.status();
        break;
      }
      value = *inserted;
      if (value == KeyIndex::kAbsent) {
        value = index_.Find(key);  // another thread was faster
      } else {
        admitted_->SetCounts(value, static_cast<uint32_t>(count), batch.step.step, batch.step.seconds);
        if (counted_as != KeyIndex::kAbsent) {
          candidates_->End(NumberOf(counted_as));
          removed.candidates.push_back(NumberOf(counted_as));
        }
      }
    }
    if (IsRow(value)) {
      batch.rows[place] = value;
      if (batch.out != nullptr) admitted_->reader().Copy(value, batch.out + place * options_.dim);
    } else if (batch.out != nullptr) {
      std::fill_n(batch.out + place * options_.dim, options_.dim, options_.default_value);
    }
  }
  Reclaim(std::move(removed));
  return status;
}

Result<ResolvedKeys> DynamicTable::Resolve(std::span<const int64_t> keys, const StepInfo& step, float* out,
                                           const ParallelFor& parallel, std::span<const int32_t> counts) {
  ResolvedKeys resolved;
  resolved.table_ = this;
  {
    const MutexLock lock(batches_mutex_);
    resolved.rows_ = std::move(spare_rows_);
  }
  if (resolved.rows_ == nullptr) resolved.rows_ = std::make_unique<std::vector<uint32_t>>();
  resolved.rows_->resize(keys.size());  // ResolveRange sets them
  const Batch batch{keys, counts, step, resolved.rows_->data(), out};
  {
    const ReaderLock gate(gate_);
    resolved.guard_ = row_epochs_.Enter();
    FirstError error;
    Mutex mutex;
    std::vector<uint32_t> unjudged;  // guarded by mutex while threads work
    parallel(static_cast<int64_t>(keys.size()), kSearchGrain,
             [&](int64_t begin, int64_t end) LOCKSTEP_REQUIRES_SHARED(gate_) {
               std::vector<uint32_t> places;
               error.Add(ResolveRange(batch, begin, end, &places));
               const MutexLock lock(mutex);
               unjudged.insert(unjudged.end(), places.begin(), places.end());
             });
    LOCKSTEP_RETURN_IF_ERROR(error.Get());
    if (!unjudged.empty()) {
      parallel(static_cast<int64_t>(unjudged.size()), kSearchGrain,
               [&](int64_t begin, int64_t end) LOCKSTEP_REQUIRES_SHARED(gate_) {
                 error.Add(JudgeRange(batch, std::span(unjudged).subspan(begin, end - begin)));
               });
      LOCKSTEP_RETURN_IF_ERROR(error.Get());
    }
    const MutexLock lock(batches_mutex_);
    batches_.insert(resolved.rows_.get());
  }
  return resolved;
}

}  // namespace lockstep
