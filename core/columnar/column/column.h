#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/columnar/memory/buffer.h"

// The form in which columns leave core/columnar: plain pointers with an owner. Users need neither Arrow's nor
// TensorFlow's headers. Letters for shapes: B rows, L ids of a row, V values in all.
//
// Example: the memory of a column of type list<list<int32>>.
//
//   row 0   [[1, 2], []]       splits[0]   0 2 2 3 4         B + 1 positions of lists
//   row 1   []                 splits[1]   0 2 2 3 6         number of lists + 1 positions of values
//   row 2   [[3]]              values      1 2 3 4 5 6       V
//   row 3   [[4, 5, 6]]
//
// Element i of a level is the range from splits[i] to splits[i + 1] in the level below, so an empty list costs only its
// position. These are the row splits of a tf.RaggedTensor, and tf/bridge passes them on unchanged.
//
// Types with inner fixed dimensions (`shape`) have `width` consecutive values for each innermost element: element e has
// values [e * width, (e + 1) * width). Strings have one more indirection, because their lengths differ: value v is the
// bytes [offsets[v], offsets[v + 1]) of `values`.
//
// A column is a value. Copies are cheap and share the buffers, which are never written again. So any threads may use,
// slice and destroy copies at once.
namespace lockstep::columnar {

// The types of single values. There are more than the engine's DTypes, because input may carry types that the engine
// does not compute with. The tables in column.cc and tf/bridge/columns.cc are indexed by this order: a new type goes to
// the end of all three.
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
  // Only the type of a file's column whose values are all null: writers store columns without any value so. It can be
  // read as every type (ParquetFile::Check), and no Field and no Column has it.
  kNull,
};

// Returns TensorFlow's name: "int64", "string", ...
std::string_view ValueTypeName(ValueType type);

// Returns the bytes of one value; 0 for kString and kNull.
int64_t ValueTypeSize(ValueType type);

// The type of a column, as a file stores it or a caller wants it. A row holds `ragged_rank` nested lists of any length
// around values of the fixed `shape`: list<int64> is {kInt64, 1, {}}, fixed_size_list<float>[16] is {kFloat32, 0,
// {16}}. A column of B rows becomes a tensor [B] + shape if ragged_rank is 0, else a ragged tensor with `shape` as
// inner dimensions. Fixed dimensions are always the innermost ones: lists of any length inside fixed ones are not
// supported.
struct ColumnType {
  ValueType value = ValueType::kInt64;
  int ragged_rank = 0;
  std::vector<int64_t> shape;

  // Returns the number of values of an innermost element: the product of `shape`, 1 if it is empty.
  int64_t width() const;

  // Returns "int64", "list<list<string>>" or "float32[16]".
  std::string ToString() const;

  friend bool operator==(const ColumnType&, const ColumnType&) = default;
};

// One column to read: its name and the form in which it is wanted. The file's type must be this type, except that its
// innermost lists may be wanted as fixed dimensions. No value is converted.
struct Field {
  std::string name;
  ColumnType type;

  // The bytes of one value: ValueTypeSize(type.value) of them in the machine's order, or any number for a string. If
  // given, a null value reads as it, and a null list as an empty list. A column that a file lacks is filled with it, or
  // with empty lists if the field is ragged. If not given, each of these cases is an error. NaN is a value, not a null.
  std::optional<std::string> default_value;
};

// The decoded rows of one column. It keeps only that part of its field's type which is needed to cut and join rows.
//
// These conditions hold for every column; the functions below rely on them without a check:
// - splits begin with 0 and never decrease; the last position of a level is the number of elements of the next one;
// - V is `width` times the last position of the last level, or B * width if no level is ragged;
//   - `values.bytes` is V times the size of a value; for strings it may be more, as slices share one buffer of bytes.
struct Column {
  ValueType type = ValueType::kInt64;
  int64_t rows = 0;   // B
  int64_t width = 1;  // values of an innermost element: the product of the fixed dimensions
  int64_t count = 0;  // V, fixed dimensions included

  // For each ragged level, outermost first, its int64 row splits: one more than its elements, beginning with 0.
  std::vector<Buffer> splits;

  // The V values; for strings their bytes.
  Buffer values;

  // Strings only: V + 1 int64 positions in `values`, which need not begin with 0.
  Buffer offsets;
};

// Returns rows [first, first + rows) of `column`. The range must lie inside the column. Values and string offsets are
// shared. Splits have to begin with 0, so they are copied unless the range is the whole column; this costs 8 bytes for
// each element of each ragged level in the range. RESOURCE_EXHAUSTED is the only error.
Result<Column> Slice(const Column& column, int64_t first, int64_t rows);

// Rows [first, first + rows) of a column, as input of Gather. The column must outlive it.
struct RowRun {
  const Column* column = nullptr;
  int64_t first = 0;
  int64_t rows = 0;
};

// Copies the rows of all `runs`, in order. There is at least one run, and all columns have the same type, width and
// depth. Rows may come from anywhere and more than once. The result shares no memory with its input, and its strings
// have no gaps. Long runs cost as much as copying their bytes; single rows cost some nanoseconds more each.
// RESOURCE_EXHAUSTED is the only error.
Result<Column> Gather(const std::vector<RowRun>& runs);

// Calls Gather for all rows of all `parts`, of which there is at least one.
Result<Column> Concatenate(const std::vector<Column>& parts);

// Rows of all fields of a source, in the order of the fields. Like its columns, it is a value.
struct Batch {
  int64_t rows = 0;
  std::vector<Column> columns;
};

// Returns `rows` rows of the field's default value, or of empty lists if the field is ragged. The field must have a
// default. RESOURCE_EXHAUSTED is the only error.
Result<Column> DefaultColumn(const Field& field, int64_t rows);

}  // namespace lockstep::columnar
