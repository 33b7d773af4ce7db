#pragma once

#include <optional>
#include <vector>

#include "core/columnar/column.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/types.h"

// Conversions between columns and TensorFlow's tensors. A column's shapes and row splits are made as TensorFlow wants
// them (core/columnar/column.h), so nothing is computed here.
namespace lockstep {

// The dtype of a tensor that holds values of a column: every value type has one.
tensorflow::DataType ToTensorFlow(columnar::ValueType type);

// The other way round; nothing for a dtype that no column has.
std::optional<columnar::ValueType> ToValueType(tensorflow::DataType dtype);

// Appends the tensors of a column: its values, [V / width] + shape (with B in place of V where nothing is ragged), then
// the int64 row splits of each ragged level, outermost first. 1 + ragged_rank tensors: the order in which the dataset's
// output types and shapes are given.
//
// Tensors share the column's memory where it lies as TensorFlow wants it and is worth it, and are copies where not;
// strings are always copies. Shared memory lives as long as a tensor does, and with it all that was decoded of the
// column in one piece. `type` is that of the column's field.
void AppendTensors(const columnar::Column& column, const columnar::ColumnType& type,
                   std::vector<tensorflow::Tensor>* tensors);

// The way back: a column of the `1 + ragged_rank` tensors that AppendTensors makes of it, from `tensors` on. Numbers
// share the tensors' memory, strings are copied. The dimensions of the values behind the first are the fixed ones.
// INVALID_ARGUMENT, with a message for a user, where the splits do not lead to the values: they may come from anywhere.
Result<columnar::Column> ColumnFromTensors(const tensorflow::Tensor* tensors, int ragged_rank);

}  // namespace lockstep
