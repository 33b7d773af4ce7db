// Restoring of rows: members of DynamicTable.
#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/strings.h"
#include "core/embedding/dynamic_table.h"
#include "core/embedding/inserter.h"

namespace lockstep {

Status DynamicTable::CheckShape(const TableRows& part, bool admitted) const {
  const auto wrong = [&](std::string_view what, size_t got, int64_t wanted) {
    return InvalidArgument(StrCat("table '", options_.name, "': ", part.size(), " keys to restore with ", got, " ",
                                  what, ", wanted ", wanted));
  };
  const int64_t count = part.size();
  const int64_t row_bytes = admitted ? admitted_->row_bytes() : 0;
  if (static_cast<int64_t>(part.rows.size()) != count * row_bytes) {
    return wrong("bytes of rows", part.rows.size(), count * row_bytes);
  }
  if (static_cast<int>(part.slots.size()) > admitted_->num_slots()) {
    return wrong("slots", part.slots.size(), admitted_->num_slots());
  }
  for (const std::vector<float>& slot : part.slots) {
    if (static_cast<int64_t>(slot.size()) != count * options_.dim) {
      return wrong("values of a slot", slot.size(), count * options_.dim);
    }
  }
  const auto fits = [&](size_t size) { return size == 0 || static_cast<int64_t>(size) == count; };
  if (!fits(part.frequencies.size())) return wrong("frequencies", part.frequencies.size(), count);
  if (!fits(part.versions.size())) return wrong("versions", part.versions.size(), count);
  if (!fits(part.seconds.size())) return wrong("times", part.seconds.size(), count);
  return OkStatus();
}

Status DynamicTable::Restore(const TableRows& part, const RestoreOptions& options) {
  const WriterLock gate(gate_);
  LOCKSTEP_RETURN_IF_ERROR(CheckShape(part, options.admitted));
  // Without exact counting, nothing is kept for keys that are not admitted.
  if (!options.admitted && candidates_ == nullptr) return OkStatus();
  Removed removed;
  Status status;
  Inserter rows(*this, options.admitted ? *admitted_ : *candidates_, options.changed);
  for (int64_t i = 0; i < part.size() && status.ok(); ++i) {
    if (!options.owns || options.owns(part.keys[i])) status = RestoreRow(part, i, options, &rows, &removed);
  }
  Reclaim(std::move(removed));
  return status;
}

Status DynamicTable::RestoreRow(const TableRows& part, int64_t i, const RestoreOptions& options, Inserter* rows,
                                Removed* removed) {
  const int64_t key = part.keys[i];
  RowStore& store = options.admitted ? *admitted_ : *candidates_;
  uint32_t value = index_.Find(key);
  if (!options.admitted && value != KeyIndex::kAbsent && IsRow(value)) return OkStatus();  // admitted for good
  if (value == KeyIndex::kAbsent || (options.admitted && IsCandidate(value))) {
    const uint32_t counted_as = value;
    if (IsCandidate(counted_as)) candidates_->BeforeChange(NumberOf(counted_as), options.changed);
    LOCKSTEP_ASSIGN_OR_RETURN(value, rows->Insert(key, counted_as));
    if (IsCandidate(counted_as)) {
      candidates_->End(NumberOf(counted_as));
      removed->candidates.push_back(NumberOf(counted_as));
    }
  } else {
    store.BeforeChange(NumberOf(value), options.changed);
  }
  const uint32_t number = NumberOf(value);
  if (options.admitted) {
    std::memcpy(store.rows()[number], part.rows.data() + i * store.row_bytes(), store.row_bytes());
    store.ResetSlots(number);
    for (size_t s = 0; s < part.slots.size(); ++s) {
      std::copy_n(part.slots[s].data() + i * options_.dim, options_.dim,
                  reinterpret_cast<float*>(store.slot(static_cast<int>(s))[number]));
    }
  }
  store.SetCounts(number, part.frequencies.empty() ? 0 : part.frequencies[i],
                  part.versions.empty() ? options.now.step : part.versions[i],
                  part.seconds.empty() ? options.now.seconds : part.seconds[i]);
  return OkStatus();
}

Status DynamicTable::RestoreFilter(std::span<const uint8_t> counters) {
  const WriterLock gate(gate_);
  if (filter_ == nullptr) return OkStatus();
  return filter_->Merge(counters).WithPrefix(StrCat("table '", options_.name, "': "));
}

}  // namespace lockstep
