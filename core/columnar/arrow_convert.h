#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "core/base/status.h"
#include "core/columnar/column.h"

namespace arrow {
class Array;
class DataType;
class Status;
}  // namespace arrow

namespace lockstep::columnar {

// Our Status for one of Arrow's. Arrow reports damaged files under several of its codes: all become DATA_LOSS, but for
// those that say otherwise (memory, not implemented, cancelled).
Status FromArrow(const arrow::Status& status);

// The form in which values of an Arrow type are read. Dates, times and timestamps are the integers that they are stored
// as (int32 or int64, in the file's unit), binary is string, a dictionary what it stands for.
// UNIMPLEMENTED names a type that has no form as a tensor: structs, maps, decimals, lists inside fixed-size lists.
Result<ColumnType> TypeFromArrow(const arrow::DataType& type);

// The values of `array` as `field` wants them, without a copy where the bytes are the same (not for bool, and not where
// nulls are replaced). Besides the type that TypeFromArrow gives, the innermost lists may be wanted as fixed
// dimensions: then all of them must have that length. `file_row(i)` is the number, in its file, of the array's row i:
// for messages. These begin with the row and leave it to the caller to name file and column.
Result<Column> ColumnFromArrow(std::shared_ptr<arrow::Array> array, const Field& field,
                               const std::function<int64_t(int64_t)>& file_row);

}  // namespace lockstep::columnar
