#include "core/embedding/dynamic_table.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/base/strings.h"
#include "core/embedding/search.h"

namespace lockstep {
namespace {

RowLayout LayoutOf(const DynamicTableOptions& options) {
  return {options.dim, options.row_type, options.record_frequency || options.eviction.needs_frequency(),
          options.record_version || options.eviction.needs_version(), options.keeps_seconds()};
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
  for (const Status& status : {initial.Validate(dim), admission.Validate(), eviction.Validate()}) {
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
  if (options.track_changes) table->TrackChanges();
  return table;
}

bool DynamicTable::changes_known() {
  const ReaderLock gate(gate_);
  const MutexLock lock(removed_mutex_);
  return tracks_changes_ && changes_known_;
}

void DynamicTable::TrackChanges() {
  const WriterLock gate(gate_);
  if (std::exchange(tracks_changes_, true)) return;
  const MutexLock lock(removed_mutex_);
  changes_known_ = index_.size() == 0 && filter_ == nullptr;
  admitted_->TrackChanges();
  if (candidates_ != nullptr) candidates_->TrackChanges();
}

void DynamicTable::Lookup(std::span<const int64_t> keys, float* out, const ParallelFor& parallel) const {
  const ReaderLock gate(gate_);
  const Epochs::Guard rows_stay = row_epochs_.Enter();
  parallel(static_cast<int64_t>(keys.size()), kSearchGrain, [&](int64_t begin, int64_t end) {
    const RowReader reader = admitted_->reader();
    const bool streams = reader.Streams(static_cast<int64_t>(keys.size()), out);
    std::array<const char*, KeyIndex::kGroup> found;
    ForEachGroup(
        index_, keys, begin, end,
        [&](int64_t i, uint32_t value) { found[i] = IsRow(value) ? reader.Prefetch(value) : nullptr; },
        [&](int64_t first, int64_t count, const uint32_t*) {
          for (int64_t i = 0; i < count; ++i) {
            float* row = out + (first + i) * reader.dim;
            if (found[i] == nullptr) [[unlikely]] {
              std::fill_n(row, reader.dim, options_.default_value);
            } else if (streams) {
              reader.Stream(found[i], row);
            } else {
              reader.Copy(found[i], row);
            }
          }
        });
    if (streams) StreamFence();
  });
}

void DynamicTable::Find(std::span<const int64_t> keys, uint32_t* numbers, const ParallelFor& parallel) const {
  const ReaderLock gate(gate_);
  parallel(static_cast<int64_t>(keys.size()), kSearchGrain, [&](int64_t begin, int64_t end) {
    ForEachGroup(
        index_, keys, begin, end, [](int64_t, uint32_t) {},
        [&](int64_t first, int64_t count, const uint32_t* values) {
          for (int64_t i = 0; i < count; ++i) numbers[first + i] = IsRow(values[i]) ? values[i] : kNoRow;
        });
  });
}

Result<int> DynamicTable::AddSlot(const std::string& name, float initial, bool provisional) {
  const WriterLock gate(gate_);
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (slot.dropped || slot.name != name) continue;
    if (slot.initial != initial && !provisional) {
      if (!slot.provisional) {
        return FailedPrecondition(StrCat("table '", options_.name, "': slot '", name, "' has initial value ",
                                         slot.initial, ", wanted ", initial));
      }
      // Rows that are older than the optimizer and still hold the old initial value get the new one as well.
      const RowView view = admitted_->slot(static_cast<int>(i));
      for (int64_t row = 0; row < admitted_->slab().end(); ++row) {
        auto* values = reinterpret_cast<float*>(view[static_cast<uint32_t>(row)]);
        const bool untouched = std::all_of(values, values + options_.dim, [&](float v) { return v == slot.initial; });
        if (untouched) std::fill_n(values, options_.dim, initial);
      }
      admitted_->SetInitial(static_cast<int>(i), initial);
      slot.initial = initial;
    }
    slot.provisional = slot.provisional && provisional;
    return static_cast<int>(i);
  }
  const auto dropped = std::find_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.dropped; });
  if (dropped != slots_.end() && !snapshot_open_) {
    *dropped = {name, initial, provisional};
    const auto number = static_cast<int>(dropped - slots_.begin());
    admitted_->FillSlot(number, initial);
    return number;
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const int number, admitted_->AddSlot(initial));
  slots_.push_back({name, initial, provisional});
  return number;
}

bool DynamicTable::DropSlot(const std::string& name) {
  const WriterLock gate(gate_);
  for (Slot& slot : slots_) {
    if (slot.dropped || slot.name != name) continue;
    slot = {};
    slot.dropped = true;
    // If a slot of this name came again, unchanged rows would have the old values in a checkpoint.
    const MutexLock lock(removed_mutex_);
    changes_known_ = false;
    removed_ = {};
    return true;
  }
  return false;
}

std::vector<DynamicTable::Slot> DynamicTable::slots() const {
  const ReaderLock gate(gate_);
  return slots_;
}

std::vector<std::string> DynamicTable::slot_names() const {
  const ReaderLock gate(gate_);
  std::vector<std::string> names;
  for (const Slot& slot : slots_) names.push_back(slot.name);
  return names;
}

Status DynamicTable::Update(std::span<const uint32_t> numbers, const float* gradients, const UpdateRule& rule,
                            std::span<const int> slots, int64_t step, const ParallelFor& parallel, bool all_rows) {
  const WriterLock gate(gate_);
  LOCKSTEP_RETURN_IF_ERROR(CheckNumbers(numbers));
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
  ApplyUpdate(target, rule, numbers, gradients, parallel, before);
  if (!all_rows) return OkStatus();
  const int64_t end = admitted_->slab().end();
  std::vector<uint8_t> skip(end);
  for (int64_t row = 0; row < end; ++row) skip[row] = admitted_->IsLive(row) ? 0 : 1;
  for (const uint32_t row : numbers) {
    if (row != kNoRow) skip[row] = 1;
  }
  ApplyZeroGradients(target, rule, end, skip, parallel, before);
  return OkStatus();
}

TableRows DynamicTable::Export() const {
  const WriterLock gate(gate_);
  TableRows all;
  for (int64_t row = 0; row < admitted_->slab().end(); ++row) {
    if (admitted_->IsLive(row)) admitted_->CopyTo(row, &all);
  }
  return all;
}

// Writes count_of(value, key) for each key.
template <typename CountOf>
void DynamicTable::GetCounts(std::span<const int64_t> keys, int64_t* counts, CountOf&& count_of) const {
  const ReaderLock gate(gate_);
  const Epochs::Guard rows_stay = row_epochs_.Enter();
  ForEachGroup(
      index_, keys, 0, static_cast<int64_t>(keys.size()), [](int64_t, uint32_t) {},
      [&](int64_t first, int64_t count, const uint32_t* values) {
        for (int64_t i = 0; i < count; ++i) counts[first + i] = count_of(values[i], keys[first + i]);
      });
}

Status DynamicTable::GetFrequency(std::span<const int64_t> keys, int64_t* frequencies) const {
  if (!admitted_->layout().frequency) {
    return FailedPrecondition(
        StrCat("table '", options_.name, "': frequencies are not recorded: set record_frequency"));
  }
  GetCounts(keys, frequencies, [&](uint32_t value, int64_t key) -> int64_t {
    if (value != KeyIndex::kAbsent) return StoreOf(value).frequency(NumberOf(value));
    return filter_ == nullptr ? 0 : filter_->Count(key);
  });
  return OkStatus();
}

Status DynamicTable::GetVersion(std::span<const int64_t> keys, int64_t* versions) const {
  if (!admitted_->layout().version) {
    return FailedPrecondition(StrCat("table '", options_.name, "': versions are not recorded: set record_version"));
  }
  GetCounts(keys, versions, [&](uint32_t value, int64_t) -> int64_t {
    return value == KeyIndex::kAbsent ? 0 : StoreOf(value).version(NumberOf(value));
  });
  return OkStatus();
}

Status DynamicTable::GetSeconds(std::span<const int64_t> keys, int64_t* seconds) const {
  if (!admitted_->layout().seconds) {
    return FailedPrecondition(StrCat("table '", options_.name, "': times are not recorded: set record_seconds"));
  }
  GetCounts(keys, seconds, [&](uint32_t value, int64_t) -> int64_t {
    return value == KeyIndex::kAbsent ? 0 : StoreOf(value).seconds(NumberOf(value));
  });
  return OkStatus();
}

int64_t DynamicTable::bytes() const {
  return index_.bytes() + admitted_->bytes() + (candidates_ == nullptr ? 0 : candidates_->bytes()) +
         (filter_ == nullptr ? 0 : static_cast<int64_t>(filter_->bytes().size()));
}

}  // namespace lockstep
