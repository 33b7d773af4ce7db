#pragma once

#include <arrow/array.h>
#include <arrow/compute/expression.h>
#include <arrow/type.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/columnar/column/filter.h"

// A filter on the columns of one file, as Arrow expressions. Only stream.h and its includers use it.
namespace lockstep::columnar {

// Immutable; any threads may use it at once.
class BoundFilter {
 public:
  // A filter that keeps every row.
  BoundFilter() = default;

  // Binds `filter` to the file's `schema`. A column that the schema lacks counts as null in all rows; the caller checks
  // whether that is allowed. INVALID_ARGUMENT, beginning with the term, if a column's type cannot be compared with the
  // values or a column occurs twice.
  static Result<BoundFilter> Bind(const Filter& filter, const arrow::Schema& schema);

  // Returns the columns on which it is evaluated, by their numbers in the file's schema.
  const std::vector<int>& columns() const { return columns_; }

  // Returns the columns whose smallest and largest value limit which rows may pass. Statistics leave out NaN, which
  // differs from every value. So floating-point columns that are compared by != or 'not in' are not among them.
  const std::vector<int>& bounded_columns() const { return bounded_columns_; }

  // Returns whether rows may pass for which `guarantee` holds (unbound, on the file's columns by their names).
  Result<bool> MayPass(const arrow::compute::Expression& guarantee) const;

  // Returns the rows that pass, ascending, out of `rows` rows of columns().
  Result<std::vector<int64_t>> Passing(const std::vector<std::shared_ptr<arrow::Array>>& columns, int64_t rows) const;

 private:
  std::shared_ptr<arrow::Schema> schema_;  // of columns_
  std::vector<int> columns_;
  std::vector<int> bounded_columns_;
  arrow::compute::Expression expression_ = arrow::compute::literal(true);  // bound to schema_
};

}  // namespace lockstep::columnar
