// Access to rows by their numbers, for computations outside of the engine.
#include <algorithm>

#include "core/base/strings.h"
#include "core/embedding/dynamic_table.h"
#include "core/embedding/optimizer/assign.h"
#include "core/embedding/search.h"

namespace lockstep {

bool DynamicTable::Contains(int64_t key) const {
  const KeyIndex::ReadGuard guard = index_.Read();
  return index_.Find(key) != KeyIndex::kAbsent;
}

void DynamicTable::Stamp(const ResolvedKeys& batch, const StepInfo& now) {
  const ReaderLock gate(gate_);
  if (!admitted_->counts()) return;
  for (const uint32_t row : batch.rows()) {
    if (row == kNoRow) continue;
    if (admitted_->watched()) admitted_->BeforeChange(row);
    admitted_->Touch(row, 0, now.step, now.seconds);
  }
}

Status DynamicTable::CheckNumbers(std::span<const uint32_t> numbers) const {
  const auto end = static_cast<int32_t>(admitted_->slab().end());
  // kNoRow becomes 0 by adding one. The check uses 32 bits and no branch, so that it is vectorised: it covers every
  // batch.
  const auto is_known = [end](uint32_t number) {
    const auto behind = static_cast<int32_t>(number + 1);
    return (behind >= 0) & (behind <= end);
  };
  bool all_known = true;
  for (const uint32_t number : numbers) all_known &= is_known(number);
  if (all_known) return OkStatus();
  const uint32_t wrong = *std::find_if_not(numbers.begin(), numbers.end(), is_known);
  return InvalidArgument(StrCat("table '", options_.name, "': row number ", wrong, ", wanted less than ", end));
}

Status DynamicTable::CheckSlot(int slot) const {
  if (slot >= 0 && slot < admitted_->num_slots()) return OkStatus();
  return InvalidArgument(StrCat("table '", options_.name, "': slot ", slot, ", wanted one of the table's ",
                                admitted_->num_slots(), " slots, from 0"));
}

Status DynamicTable::ReadRows(std::span<const uint32_t> numbers, std::optional<int> slot, float* values,
                              const ParallelFor& parallel) const {
  const ReaderLock gate(gate_);
  LOCKSTEP_RETURN_IF_ERROR(CheckNumbers(numbers));
  if (slot) LOCKSTEP_RETURN_IF_ERROR(CheckSlot(*slot));
  const RowReader reader = slot ? RowReader{admitted_->slot(*slot), options_.dim} : admitted_->reader();
  parallel(static_cast<int64_t>(numbers.size()), kSearchGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (numbers[i] == kNoRow) {
        std::fill_n(values + i * options_.dim, options_.dim, 0.0f);
      } else {
        reader.Copy(numbers[i], values + i * options_.dim);
      }
    }
  });
  return OkStatus();
}

Status DynamicTable::WriteRows(std::span<const uint32_t> numbers, std::optional<int> slot, const float* values,
                               int64_t step, const ParallelFor& parallel) {
  if (!slot) {
    LOCKSTEP_ASSIGN_OR_RETURN(const UpdateRule assign, AssignRule(options_.row_type));
    return Update(numbers, values, assign, {}, step, parallel);
  }
  const WriterLock gate(gate_);
  LOCKSTEP_RETURN_IF_ERROR(CheckNumbers(numbers));
  LOCKSTEP_RETURN_IF_ERROR(CheckSlot(*slot));
  const RowView rows = admitted_->slot(*slot);
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] == kNoRow) continue;
    if (admitted_->watched()) admitted_->BeforeChange(numbers[i]);
    std::copy_n(values + static_cast<int64_t>(i) * options_.dim, options_.dim,
                reinterpret_cast<float*>(rows[numbers[i]]));
  }
  return OkStatus();
}

}  // namespace lockstep
