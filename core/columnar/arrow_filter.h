#pragma once

#include <arrow/array.h>
#include <arrow/compute/expression.h>
#include <arrow/type.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/columnar/filter.h"

// A filter on the columns of one file, by Arrow's expressions. For arrow_stream.h and what includes it alone.
namespace lockstep::columnar {

// Immutable; any threads may use it at once.
class BoundFilter {
 public:
  // A filter that keeps every row.
  BoundFilter() = default;

  // `schema` is the file's. A column that it lacks is taken to be null in all rows; whether it may be lacking is the
  // caller's business. INVALID_ARGUMENT, which begins with the term, for a column whose type cannot be compared with
  // the values, or that is there twice.
  static Result<BoundFilter> Bind(const Filter& filter, const arrow::Schema& schema);

  // The columns to evaluate it on, by their numbers in the file's schema.
  const std::vector<int>& columns() const { return columns_; }

  // Those of them whose smallest and largest value bound what may pass. Statistics leave NaN out, which differs from
  // every value: floating-point columns that are compared by != or 'not in' are not among them.
  const std::vector<int>& bounded_columns() const { return bounded_columns_; }

  // Whether rows may pass of which `guarantee` (unbound, about the file's columns by their names) is known to hold.
  Result<bool> MayPass(const arrow::compute::Expression& guarantee) const;

  // The rows that pass, ascending, out of `rows` rows of columns().
  Result<std::vector<int64_t>> Passing(const std::vector<std::shared_ptr<arrow::Array>>& columns, int64_t rows) const;

 private:
  std::shared_ptr<arrow::Schema> schema_;  // of columns_
  std::vector<int> columns_;
  std::vector<int> bounded_columns_;
  arrow::compute::Expression expression_ = arrow::compute::literal(true);  // bound to schema_
};

}  // namespace lockstep::columnar
