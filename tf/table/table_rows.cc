#include "tf/table/table_rows.h"

#include <cstring>

#include "core/base/float16.h"
#include "tf/bridge/convert.h"

namespace lockstep {

void ReadRow(const DynamicTable& table, const TableRows& part, int64_t from, float* out) {
  const int64_t dim = table.options().dim;
  const DType type = table.options().row_type;
  const RowView rows =
      RowView::Contiguous(const_cast<char*>(part.rows.data()), dim * static_cast<int64_t>(DTypeSize(type)));
  RowReader{rows, dim, type}.Copy(static_cast<uint32_t>(from), out);
}

std::vector<char> StoredRows(DType type, const tensorflow::Tensor& rows) {
  const auto* values = static_cast<const float*>(Data(rows));
  std::vector<char> bytes(rows.NumElements() * DTypeSize(type));
  if (type == DType::kFloat32) {
    if (!bytes.empty()) std::memcpy(bytes.data(), values, bytes.size());
    return bytes;
  }
  auto* out = reinterpret_cast<uint16_t*>(bytes.data());
  for (int64_t i = 0; i < rows.NumElements(); ++i) {
    out[i] = type == DType::kFloat16 ? FloatToFloat16(values[i]) : FloatToBFloat16(values[i]);
  }
  return bytes;
}

}  // namespace lockstep
