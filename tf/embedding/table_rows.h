#pragma once

#include <cstdint>
#include <vector>

#include "core/embedding/dynamic_table.h"
#include "tensorflow/core/framework/tensor.h"

namespace lockstep {

// Rows between a table's parts and tensors, which are float32 whatever the type of the table's rows: 16-bit rows are
// widened without loss, and come back as they were.

// Row `from` of a table's part. out: [D].
void ReadRow(const DynamicTable& table, const TableRows& part, int64_t from, float* out);
// rows [N, D] float32, as a part of a table with rows of this type has them.
std::vector<char> StoredRows(DType type, const tensorflow::Tensor& rows);

}  // namespace lockstep
