#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"

// The form in which columns leave this folder: plain pointers with an owner, so that neither Arrow's nor TensorFlow's
// headers are needed to use them. Letters for shapes: B rows, L ids of a row, V values in all.
namespace lockstep::columnar {

// The types of single values. Wider than the engine's DType, because input may carry what nobody computes with.
enum class ValueType : uint8_t {
  kBool,  // one byte each, 0 or 1
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUInt8,
  kUInt16,
  kUInt32,
  kUInt64,
  kFloat16,
  kFloat32,
  kFloat64,
  kString,  // any bytes
};

// "int64", "string", ...: TensorFlow's names.
std::string_view ValueTypeName(ValueType type);

// Bytes of one value; 0 for kString.
int64_t ValueTypeSize(ValueType type);

// What a file stores, or a caller asks for, in one column. A row holds `ragged_rank` nested lists of any length around
// values of the fixed `shape`: list<int64> is {kInt64, 1, {}}, fixed_size_list<float>[16] is {kFloat32, 0, {16}}.
struct ColumnType {
  ValueType value = ValueType::kInt64;
  int ragged_rank = 0;
  std::vector<int64_t> shape;

  // Product of `shape`.
  int64_t width() const;

  // "int64", "list<list<string>>", "float32[16]".
  std::string ToString() const;

  friend bool operator==(const ColumnType&, const ColumnType&) = default;
};

// One column to read.
struct Field {
  std::string name;
  ColumnType type;

  // Bytes of one value. Where given, a null value reads as it, a null list as an empty list, and a column that a file
  // lacks as a column of it (of empty lists, where the field is ragged). Where not given, each of these is an error.
  std::optional<std::string> default_value;
};

// Bytes and what keeps them alive. Never written to once shared.
struct Buffer {
  const void* data = nullptr;
  int64_t bytes = 0;
  std::shared_ptr<const void> owner;

  template <typename T>
  const T* as() const {
    return static_cast<const T*>(data);
  }
};

// `bytes` uninitialised bytes on a 64-byte border; `*data` is where to write them before the buffer is shared.
// Running out of memory is RESOURCE_EXHAUSTED.
Result<Buffer> AllocateBuffer(int64_t bytes, void** data);

// Rows of one column, decoded.
struct Column {
  ValueType type = ValueType::kInt64;
  int64_t rows = 0;   // B
  int64_t width = 1;  // values of an innermost element: the product of the fixed dimensions
  int64_t count = 0;  // V, fixed dimensions included

  // For each ragged level, outermost first, int64 row splits: one more than the elements of that level, from 0.
  std::vector<Buffer> splits;

  // V values; for strings their bytes.
  Buffer values;

  // Strings only: V + 1 int64 positions in `values`, which need not begin with 0.
  Buffer offsets;
};

// Rows [first, first + rows) of `column`. Values are shared, splits are written anew unless these are
// all rows.
Result<Column> Slice(const Column& column, int64_t first, int64_t rows);

// The rows of all `parts` (one type, at least one part), in order, copied.
Result<Column> Concatenate(const std::vector<Column>& parts);

// `rows` rows that hold nothing but the field's default value, or empty lists where the field is ragged.
Result<Column> DefaultColumn(const Field& field, int64_t rows);

}  // namespace lockstep::columnar
