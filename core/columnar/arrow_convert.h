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
// as (int32 or int64, in the file's unit), binary is string, a dictionary what it stands for, an extension type its
// storage. UNIMPLEMENTED names a type that has no form as a tensor: structs, maps, decimals, lists inside fixed-size
// lists.
Result<ColumnType> TypeFromArrow(const arrow::DataType& type);

// The values of `array` as `field` wants them, without a copy where the bytes are the same (not for bool, and not where
// nulls are replaced). The column keeps the array alive then. Besides the type that TypeFromArrow gives, the innermost
// lists may be wanted as fixed dimensions: then all of them must have that length. `file_row(i)` is the number, in its
// file, of the array's row i: for messages. These begin with the row and leave it to the caller to name file and
// column.
//
//   DATA_LOSS           a null without a default, or lists and strings that reach beyond their values: a damaged file
//   INVALID_ARGUMENT    a list of another length than the fixed dimension that is wanted
//   RESOURCE_EXHAUSTED  no memory for a copy
//   INTERNAL            an array that is not of the field's type, which ParquetFile::Check rules out
//
// May be called from any thread; `array` is only read. Arrow may throw std::bad_alloc through it: callers guard.
Result<Column> ColumnFromArrow(std::shared_ptr<arrow::Array> array, const Field& field,
                               const std::function<int64_t(int64_t)>& file_row);

}  // namespace lockstep::columnar
