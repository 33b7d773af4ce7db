// How a batch is resolved. Its keys are gone through in groups of 32: all of a group are located, which prefetches
// their buckets, while those of the group before are searched, which prefetches their rows and counts; then rows are
// copied out. What is not there is inserted at once, or, where keys have to be admitted, counted and remembered; when
// the whole batch has been counted, what was remembered is judged. So each place of a key in the batch gets the same
// answer.
#include "core/embedding/dynamic_table.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <shared_mutex>
#include <utility>

#include "core/base/float16.h"
#include "core/base/strings.h"

namespace lockstep {
namespace {

// Keys that are searched under one guard of the index, and the least that a thread is given.
constexpr int64_t kGuardedKeys = 4096;
constexpr int64_t kGrain = 2048;

// Collects the first error of ranges that run at once.
class FirstError {
 public:
  void Add(Status status) {
    if (status.ok()) return;
    const std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = std::move(status);
  }
  Status Get() {
    const std::lock_guard lock(mutex_);
    return status_;
  }

 private:
  std::mutex mutex_;
  Status status_;  // guarded by mutex_
};

RowLayout LayoutOf(const DynamicTableOptions& options) {
  return {options.dim, options.row_type, options.record_frequency || options.eviction.needs_frequency(),
          options.record_version || options.eviction.needs_version(), options.eviction.seconds_to_live.has_value()};
}

}  // namespace

Status DynamicTableOptions::Validate() const {
  const auto wrong = [&](const auto&... parts) { return InvalidArgument(StrCat("table '", name, "': ", parts...)); };
  if (dim < 1 || dim > 1 << 20) return wrong("dimension ", dim, ", wanted 1 to 2^20");
  if (row_type != DType::kFloat32 && row_type != DType::kFloat16 && row_type != DType::kBFloat16) {
    return wrong("rows of ", DTypeName(row_type), ", wanted float32, float16 or bfloat16");
  }
  if (expected_keys < 0 || expected_keys > Slab::kMaxRows) {
    return wrong(expected_keys, " keys expected, wanted 0 to ", Slab::kMaxRows);
  }
  for (const Status& status : {initial.Validate(), admission.Validate(), eviction.Validate()}) {
    if (!status.ok()) return status.WithPrefix(StrCat("table '", name, "': "));
  }
  return OkStatus();
}

DynamicTable::DynamicTable(const DynamicTableOptions& options)
    : options_(options), initial_(options.initial, options.name), index_(options.expected_keys) {}

DynamicTable::~DynamicTable() = default;

Result<std::unique_ptr<DynamicTable>> DynamicTable::Create(const DynamicTableOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(options.Validate());
  std::unique_ptr<DynamicTable> table(new DynamicTable(options));
  const RowLayout layout = LayoutOf(options);
  LOCKSTEP_ASSIGN_OR_RETURN(table->admitted_, RowStore::Create(layout));
  if (options.admission.bloom()) {
    LOCKSTEP_ASSIGN_OR_RETURN(table->filter_, CountingBloomFilter::Create(options.admission));
  } else if (options.admission.counts()) {
    LOCKSTEP_ASSIGN_OR_RETURN(table->candidates_,
                              RowStore::Create({0, options.row_type, true, layout.version, layout.seconds}));
  }
  if (options.track_changes) {
    table->admitted_->TrackChanges();
    if (table->candidates_ != nullptr) table->candidates_->TrackChanges();
  }
  return table;
}

ResolvedKeys& ResolvedKeys::operator=(ResolvedKeys&& other) noexcept {
  std::swap(table_, other.table_);
  std::swap(rows_, other.rows_);
  std::swap(guard_, other.guard_);
  return *this;
}

ResolvedKeys::~ResolvedKeys() {
  if (rows_ == nullptr) return;
  const std::lock_guard lock(table_->batches_mutex_);
  table_->batches_.erase(rows_.get());
  // Its memory has been touched: the next batch needn't wait for pages.
  table_->spare_rows_ = std::move(rows_);
}

// What a call of Resolve works on.
struct DynamicTable::Batch {
  std::span<const int64_t> keys;
  std::span<const int32_t> counts;
  StepInfo step;
  uint32_t* rows;  // [N]
  float* out;      // [N, D] or null

  int64_t CountOf(int64_t place) const { return counts.empty() ? 1 : counts[place]; }
};

// Makes rows of keys that have none, with numbers that are taken some at a time; what is left goes back at the end.
class DynamicTable::Inserter {
 public:
  Inserter(DynamicTable& table, RowStore& store, bool changed = true)
      : table_(table), store_(store), changed_(changed) {}
  ~Inserter() { store_.slab().Give({numbers_.data() + next_, numbers_.size() - next_}); }

  // The key's value in the index: that of a new row or candidate, or whatever it got from somebody else meanwhile.
  // `replaced`: the value that it has and that is to be replaced; then kAbsent says that it has another one by now.
  Result<uint32_t> Insert(int64_t key, uint32_t replaced = KeyIndex::kAbsent) {
    if (next_ == numbers_.size()) {
      numbers_.resize(kTaken);
      next_ = kTaken;
      LOCKSTEP_RETURN_IF_ERROR(store_.slab().Take(numbers_).WithPrefix(StrCat("table '", table_.options_.name, "': ")));
      next_ = 0;
    }
    const uint32_t number = numbers_[next_];
    const bool admitted = &store_ == table_.admitted_.get();
    if (admitted) FillInitial(key, number);
    store_.Begin(number, key, changed_);
    const uint32_t value = admitted ? number : number | kCandidate;
    uint32_t found = KeyIndex::kAbsent;
    if (replaced != KeyIndex::kAbsent) {
      if (table_.index_.Replace(key, replaced, value)) found = value;
    } else {
      found = table_.index_.Insert(key, value);
      if (found == KeyIndex::kAbsent) {
        store_.End(number);
        return ResourceExhausted(StrCat("table '", table_.options_.name, "': no memory for the index of more than ",
                                        table_.index_.size(), " keys"));
      }
    }
    if (found == value) {
      ++next_;
    } else {
      store_.End(number);  // nobody has seen it: for the next key
    }
    return found;
  }

 private:
  static constexpr size_t kTaken = 32;

  void FillInitial(int64_t key, uint32_t number) {
    const int64_t dim = table_.options_.dim;
    char* row = store_.rows()[number];
    if (table_.options_.row_type == DType::kFloat32) {
      table_.initial_.Fill(key, reinterpret_cast<float*>(row), dim);
      return;
    }
    values_.resize(dim);
    table_.initial_.Fill(key, values_.data(), dim);
    auto* stored = reinterpret_cast<uint16_t*>(row);
    for (int64_t i = 0; i < dim; ++i) {
      stored[i] =
          table_.options_.row_type == DType::kFloat16 ? FloatToFloat16(values_[i]) : FloatToBFloat16(values_[i]);
    }
  }

  DynamicTable& table_;
  RowStore& store_;
  const bool changed_;
  std::vector<uint32_t> numbers_;
  size_t next_ = 0;
  std::vector<float> values_;
};

Result<uint32_t> DynamicTable::InsertOne(RowStore& store, int64_t key, uint32_t replaced, bool changed) {
  return Inserter(*this, store, changed).Insert(key, replaced);
}

void DynamicTable::ReadUnseen(int64_t key, float* out) const {
  if (!options_.unseen_reads_initial || options_.admission.counts()) {
    std::fill_n(out, options_.dim, options_.default_value);
    return;
  }
  initial_.Fill(key, out, options_.dim);
  // As the row would hold it.
  for (int64_t i = 0; i < options_.dim; ++i) {
    if (options_.row_type == DType::kFloat16) out[i] = Float16ToFloat(FloatToFloat16(out[i]));
    if (options_.row_type == DType::kBFloat16) out[i] = BFloat16ToFloat(FloatToBFloat16(out[i]));
  }
}

// Finds the values of places [begin, end) of `keys` and calls visit(first, count, values) for each group, when their
// rows are on their way from memory. The next group is located before this one is searched, so that twice as many
// misses are under way.
template <typename Prefetch, typename Visit>
static void ForEachGroup(const KeyIndex& index, std::span<const int64_t> keys, int64_t begin, int64_t end,
                         Prefetch&& prefetch, Visit&& visit) {
  constexpr int64_t kGroup = KeyIndex::kGroup;
  std::array<KeyIndex::Place, kGroup> places[2];
  for (int64_t guarded = begin; guarded < end; guarded += kGuardedKeys) {
    const KeyIndex::ReadGuard guard = index.Read();
    const int64_t stop = std::min(end, guarded + kGuardedKeys);
    const auto locate = [&](int64_t first, auto& group) {
      for (int64_t i = first; i < std::min(stop, first + kGroup); ++i) group[i - first] = index.Locate(keys[i]);
    };
    locate(guarded, places[0]);
    for (int64_t first = guarded, turn = 0; first < stop; first += kGroup, ++turn) {
      locate(first + kGroup, places[(turn + 1) & 1]);
      const int64_t count = std::min(kGroup, stop - first);
      uint32_t values[kGroup];
      for (int64_t i = 0; i < count; ++i) {
        values[i] = KeyIndex::Find(places[turn & 1][i], keys[first + i]);
        prefetch(values[i]);
      }
      visit(first, count, values);
    }
  }
}

void DynamicTable::Lookup(std::span<const int64_t> keys, float* out, const ParallelFor& parallel) const {
  const std::shared_lock gate(gate_);
  const Epochs::Guard rows_stay = row_epochs_.Enter();
  parallel(static_cast<int64_t>(keys.size()), kGrain, [&](int64_t begin, int64_t end) {
    const RowReader reader = admitted_->reader();
    ForEachGroup(
        index_, keys, begin, end,
        [&](uint32_t value) {
          if (IsRow(value)) reader.Prefetch(value);
        },
        [&](int64_t first, int64_t count, const uint32_t* values) {
          for (int64_t i = 0; i < count; ++i) {
            float* row = out + (first + i) * reader.dim;
            if (IsRow(values[i])) {
              reader.Copy(values[i], row);
            } else {
              ReadUnseen(keys[first + i], row);
            }
          }
        });
  });
}

// The key of this place has this value: counts it, and reads its row where there is one.
void DynamicTable::Seen(const Batch& batch, int64_t place, uint32_t value) {
  RowStore& store = StoreOf(value);
  const uint32_t number = NumberOf(value);
  if (store.watched()) store.BeforeChange(number);
  if (store.counts()) store.Touch(number, batch.CountOf(place), batch.step.step, batch.step.seconds);
  if (!IsRow(value)) return;
  batch.rows[place] = value;
  if (batch.out != nullptr) admitted_->reader().Copy(value, batch.out + place * options_.dim);
}

Status DynamicTable::ResolveRange(const Batch& batch, int64_t begin, int64_t end, std::vector<uint32_t>* unjudged) {
  Inserter rows(*this, *admitted_);
  Inserter candidates(*this, candidates_ == nullptr ? *admitted_ : *candidates_);
  Status status;
  const RowReader reader = admitted_->reader();
  const auto prefetch = [&](uint32_t value) {
    if (!IsRow(value)) return;
    if (batch.out != nullptr) reader.Prefetch(value);
    admitted_->PrefetchCounts(value);
  };
  ForEachGroup(index_, batch.keys, begin, end, prefetch, [&](int64_t first, int64_t count, const uint32_t* values) {
    for (int64_t i = 0; i < count && status.ok(); ++i) {
      const int64_t place = first + i;
      uint32_t value = values[i];
      if (value == KeyIndex::kAbsent && filter_ != nullptr) {
        filter_->Add(batch.keys[place], batch.CountOf(place));
        unjudged->push_back(static_cast<uint32_t>(place));
        continue;
      }
      if (value == KeyIndex::kAbsent) {
        Result<uint32_t> inserted = (candidates_ == nullptr ? rows : candidates).Insert(batch.keys[place]);
        if (!inserted.ok()) {
          status = inserted.status();
          return;
        }
        value = *inserted;
      }
      Seen(batch, place, value);
      if (IsCandidate(value)) unjudged->push_back(static_cast<uint32_t>(place));
    }
  });
  return status;
}

Status DynamicTable::JudgeRange(const Batch& batch, std::span<const uint32_t> places) {
  Inserter rows(*this, *admitted_);
  Gone gone;
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
        value = index_.Find(key);  // somebody was faster
      } else if (counted_as != KeyIndex::kAbsent) {
        admitted_->SetCounts(value, static_cast<uint32_t>(count), batch.step.step, batch.step.seconds);
        candidates_->End(NumberOf(counted_as));
        gone.candidates.push_back(NumberOf(counted_as));
      }
    }
    if (IsRow(value)) {
      batch.rows[place] = value;
      if (batch.out != nullptr) admitted_->reader().Copy(value, batch.out + place * options_.dim);
    } else if (batch.out != nullptr) {
      std::fill_n(batch.out + place * options_.dim, options_.dim, options_.default_value);
    }
  }
  Reclaim(std::move(gone));
  return status;
}

Result<ResolvedKeys> DynamicTable::Resolve(std::span<const int64_t> keys, const StepInfo& step, float* out,
                                           const ParallelFor& parallel, std::span<const int32_t> counts) {
  ResolvedKeys resolved;
  resolved.table_ = this;
  {
    const std::lock_guard lock(batches_mutex_);
    resolved.rows_ = std::move(spare_rows_);
  }
  if (resolved.rows_ == nullptr) resolved.rows_ = std::make_unique<std::vector<uint32_t>>();
  resolved.rows_->assign(keys.size(), kNoRow);
  const Batch batch{keys, counts, step, resolved.rows_->data(), out};
  {
    const std::shared_lock gate(gate_);
    resolved.guard_ = row_epochs_.Enter();
    FirstError error;
    std::mutex mutex;
    std::vector<uint32_t> unjudged;  // guarded by mutex
    parallel(static_cast<int64_t>(keys.size()), kGrain, [&](int64_t begin, int64_t end) {
      std::vector<uint32_t> places;
      error.Add(ResolveRange(batch, begin, end, &places));
      const std::lock_guard lock(mutex);
      unjudged.insert(unjudged.end(), places.begin(), places.end());
    });
    LOCKSTEP_RETURN_IF_ERROR(error.Get());
    if (!unjudged.empty()) {
      parallel(static_cast<int64_t>(unjudged.size()), kGrain, [&](int64_t begin, int64_t end) {
        error.Add(JudgeRange(batch, std::span(unjudged).subspan(begin, end - begin)));
      });
      LOCKSTEP_RETURN_IF_ERROR(error.Get());
    }
    const std::lock_guard lock(batches_mutex_);
    batches_.insert(resolved.rows_.get());
  }
  return resolved;
}

Result<int> DynamicTable::AddSlot(const std::string& name, float initial) {
  const std::unique_lock gate(gate_);
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].first != name) continue;
    if (slots_[i].second == initial) return static_cast<int>(i);
    return FailedPrecondition(
        StrCat("table '", options_.name, "': slot '", name, "' begins with ", slots_[i].second, ", wanted ", initial));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const int number, admitted_->AddSlot(initial));
  slots_.emplace_back(name, initial);
  return number;
}

std::vector<std::string> DynamicTable::slot_names() const {
  const std::shared_lock gate(gate_);
  std::vector<std::string> names;
  for (const auto& [name, initial] : slots_) names.push_back(name);
  return names;
}

Status DynamicTable::Update(const ResolvedKeys& batch, const float* gradients, const UpdateRule& rule,
                            std::span<const int> slots, int64_t step, const ParallelFor& parallel, bool all_rows) {
  const std::unique_lock gate(gate_);
  if (rule.row_type != options_.row_type) {
    return InvalidArgument(StrCat("table '", options_.name, "': an update of ", DTypeName(rule.row_type),
                                  " rows, wanted ", DTypeName(options_.row_type)));
  }
  if (static_cast<int>(slots.size()) != rule.num_slots) {
    return InvalidArgument(
        StrCat("table '", options_.name, "': ", slots.size(), " slots for a rule, wanted ", rule.num_slots));
  }
  UpdateTarget target{admitted_->rows(),
                      {},
                      options_.dim,
                      &admitted_->keys(),
                      MixBits(options_.initial.seed + MixBits(static_cast<uint64_t>(step)))};
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] < 0 || slots[i] >= admitted_->num_slots()) {
      return InvalidArgument(
          StrCat("table '", options_.name, "': slot ", slots[i], ", wanted 0 to ", admitted_->num_slots() - 1));
    }
    target.slots[i] = admitted_->slot(slots[i]);
  }
  BeforeUpdate before;
  if (admitted_->watched()) {
    before = [&](std::span<const uint32_t> rows) {
      for (const uint32_t row : rows) admitted_->BeforeChange(row);
    };
  }
  ApplyUpdate(target, rule, batch.rows(), gradients, parallel, before);
  if (!all_rows) return OkStatus();
  const int64_t end = admitted_->slab().end();
  std::vector<uint8_t> skip(end);
  for (int64_t row = 0; row < end; ++row) skip[row] = admitted_->IsLive(row) ? 0 : 1;
  for (const uint32_t row : batch.rows()) {
    if (row != kNoRow) skip[row] = 1;
  }
  ApplyZeroGradients(target, rule, end, skip, parallel, before);
  return OkStatus();
}

TableRows DynamicTable::Export() const {
  const std::unique_lock gate(gate_);
  TableRows all;
  for (int64_t row = 0; row < admitted_->slab().end(); ++row) {
    if (admitted_->IsLive(row)) admitted_->CopyTo(row, &all);
  }
  return all;
}

Status DynamicTable::GetFrequency(std::span<const int64_t> keys, int64_t* frequencies) const {
  if (!admitted_->layout().frequency) {
    return FailedPrecondition(
        StrCat("table '", options_.name, "': frequencies are not recorded: set record_frequency"));
  }
  const std::shared_lock gate(gate_);
  const Epochs::Guard rows_stay = row_epochs_.Enter();
  ForEachGroup(
      index_, keys, 0, keys.size(), [](uint32_t) {},
      [&](int64_t first, int64_t count, const uint32_t* values) {
        for (int64_t i = 0; i < count; ++i) {
          if (values[i] != KeyIndex::kAbsent) {
            frequencies[first + i] = StoreOf(values[i]).frequency(NumberOf(values[i]));
          } else {
            frequencies[first + i] = filter_ == nullptr ? 0 : filter_->Count(keys[first + i]);
          }
        }
      });
  return OkStatus();
}

Status DynamicTable::GetVersion(std::span<const int64_t> keys, int64_t* versions) const {
  if (!admitted_->layout().version) {
    return FailedPrecondition(StrCat("table '", options_.name, "': versions are not recorded: set record_version"));
  }
  const std::shared_lock gate(gate_);
  const Epochs::Guard rows_stay = row_epochs_.Enter();
  ForEachGroup(
      index_, keys, 0, keys.size(), [](uint32_t) {},
      [&](int64_t first, int64_t count, const uint32_t* values) {
        for (int64_t i = 0; i < count; ++i) {
          versions[first + i] = values[i] == KeyIndex::kAbsent ? 0 : StoreOf(values[i]).version(NumberOf(values[i]));
        }
      });
  return OkStatus();
}

int64_t DynamicTable::bytes() const {
  return index_.bytes() + admitted_->bytes() + (candidates_ == nullptr ? 0 : candidates_->bytes()) +
         (filter_ == nullptr ? 0 : static_cast<int64_t>(filter_->bytes().size()));
}

}  // namespace lockstep
