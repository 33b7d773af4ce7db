#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "core/base/status.h"
#include "core/columnar/column/column.h"

namespace arrow {
class Array;
class DataType;
class Status;
}  // namespace arrow

namespace lockstep::columnar {

// Returns our Status for one of Arrow's. Arrow reports damaged files under several of its codes. All become DATA_LOSS,
// except those with another clear meaning (memory, not implemented, cancelled).
Status FromArrow(const arrow::Status& status);

// Returns the form in which values of an Arrow type are read. Dates, times and timestamps become their stored integers
// (int32 or int64, in the file's unit). Binary becomes string, a dictionary becomes its values, and an extension type
// its storage. UNIMPLEMENTED names a type without a form as a tensor: structs, maps, decimals, lists inside fixed-size
// lists.
Result<ColumnType> TypeFromArrow(const arrow::DataType& type);

// Returns the unit of the innermost values (FileColumn::unit). Two time zones have one unit: the numbers count from the
// same moment.
std::string UnitFromArrow(const arrow::DataType& type);

// Returns the values of `array` in the form of `field`. Values are not copied where the bytes are the same (not for
// bool, and not where nulls are replaced); then the column keeps the array alive. The type is the one that
// TypeFromArrow gives, except that the innermost lists may be wanted as fixed dimensions: then all of them must have
// that length. `file_row(i)` returns the number of the array's row i in its file, for messages. Messages begin with the
// row; the caller adds the file and the column.
//
//   DATA_LOSS           a null without a default, or lists and strings that reach beyond their values (a damaged file)
//   INVALID_ARGUMENT    a list whose length is not the wanted fixed dimension
//   RESOURCE_EXHAUSTED  no memory for a copy
//   INTERNAL            an array that is not of the field's type, which ParquetFile::Check rules out
//
// May be called from any thread; `array` is only read. Arrow may throw std::bad_alloc through it, which callers catch.
Result<Column> ColumnFromArrow(std::shared_ptr<arrow::Array> array, const Field& field,
                               const std::function<int64_t(int64_t)>& file_row);

}  // namespace lockstep::columnar
