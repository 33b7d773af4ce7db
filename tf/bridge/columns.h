#pragma once

#include <optional>
#include <vector>

#include "core/columnar/column/column.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"

// Conversions between columns and TensorFlow's tensors. A column already has its shapes and row splits in TensorFlow's
// form (core/columnar/column/column.h), so nothing is computed here.
namespace lockstep {

// Returns the dtype of a tensor that holds values of a column; every value type has one.
tensorflow::DataType ToTensorFlow(columnar::ValueType type);

// The inverse; returns nothing for a dtype that no column has.
std::optional<columnar::ValueType> ToValueType(tensorflow::DataType dtype);

// Appends the tensors of a column: its values, [V / width] + shape (with B in place of V if nothing is ragged), then
// the int64 row splits of each ragged level, outermost first. These are 1 + ragged_rank tensors, in the order of the
// dataset's output types and shapes.
//
// Tensors share the column's memory if it is aligned and large enough, and are copies otherwise; strings are always
// copies. Shared memory lives as long as a tensor, and with it the whole decoded piece of the column. `type` is the
// type of the column's field.
void AppendTensors(const columnar::Column& column, const columnar::ColumnType& type,
                   std::vector<tensorflow::Tensor>* tensors);

// The inverse: returns a column of the `1 + ragged_rank` tensors, beginning at `tensors`, that AppendTensors makes of
// it. Numbers share the tensors' memory, strings are copied. The values' dimensions after the first are the fixed ones.
// The splits may come from anywhere: INVALID_ARGUMENT, with a message for a user, if they do not fit the values.
Result<columnar::Column> ColumnFromTensors(const tensorflow::Tensor* tensors, int ragged_rank);

}  // namespace lockstep
