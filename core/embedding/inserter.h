#pragma once

#include <cstdint>
#include <vector>

#include "core/base/float16.h"
#include "core/base/strings.h"
#include "core/embedding/dynamic_table.h"

namespace lockstep {

// Makes rows for keys that have none. It takes row numbers from the slab in groups, and its destructor returns unused
// ones. For one thread, which holds the table's gate.
class DynamicTable::Inserter {
 public:
  Inserter(DynamicTable& table, RowStore& store, bool changed = true)
      : table_(table), store_(store), changed_(changed) {}
  ~Inserter() { store_.slab().Give({numbers_.data() + next_, numbers_.size() - next_}); }

  // Inserts the key and returns its value in the index: the new row or candidate, or the value of a thread that was
  // faster. `replaced` is the current value that is to be replaced; kAbsent then means that the key has another value
  // by now.
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
      store_.End(number);  // no thread has seen it: it is used for the next key
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

}  // namespace lockstep
