#pragma once

#include <cstdint>
#include <vector>

#include "core/embedding/dynamic_table.h"
#include "tensorflow/core/framework/tensor.h"

namespace lockstep {

// Conversions of rows between a table's parts and tensors. Tensors are float32 for any type of the table's rows: 16-bit
// rows are widened without loss, and convert back unchanged.

// Reads row `from` of a table's part. out: [D].
void ReadRow(const DynamicTable& table, const TableRows& part, int64_t from, float* out);
// Returns rows [N, D] float32 in the form of a part of a table with this row type.
std::vector<char> StoredRows(DType type, const tensorflow::Tensor& rows);

}  // namespace lockstep
