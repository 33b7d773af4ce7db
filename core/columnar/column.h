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
//
// How rows lie in memory, by the example of a column of type list<list<int32>>:
//
//   row 0   [[1, 2], []]       splits[0]   0 2 2 3 4         B + 1 positions of lists
//   row 1   []                 splits[1]   0 2 2 3 6         one more than there are lists: positions of values
//   row 2   [[3]]              values      1 2 3 4 5 6       V
//   row 3   [[4, 5, 6]]
//
// Element i of a level is what lies between splits[i] and splits[i + 1] of the level below, so that an empty list costs
// no memory but its position. These are the row splits of a tf.RaggedTensor, and tf/bridge hands them on as they are.
//
// Types with fixed dimensions inside (`shape`) have `width` values to each innermost element, one after the other:
// element e has values [e * width, (e + 1) * width). Strings have one more indirection, because their lengths differ:
// value v is the bytes [offsets[v], offsets[v + 1]) of `values`.
//
// A column is a value. Copies are cheap and share the buffers, which nobody writes to any more; so that copies may be
// used, sliced and destroyed by any threads at once.
namespace lockstep::columnar {

// The types of single values. Wider than the engine's DType, because input may carry what nobody computes with.
// The order is that of the tables in column.cc and tf/bridge/columns.cc, which are indexed by it: new types go to the
// end of all three.
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
// values of the fixed `shape`: list<int64> is {kInt64, 1, {}}, fixed_size_list<float>[16] is {kFloat32, 0, {16}}. A
// column of B rows becomes a tensor [B] + shape where ragged_rank is 0, else a ragged tensor with `shape` as inner
// dimensions. Fixed dimensions are always the innermost ones: lists of any length inside fixed ones have no form here.
struct ColumnType {
  ValueType value = ValueType::kInt64;
  int ragged_rank = 0;
  std::vector<int64_t> shape;

  // Values of an innermost element: the product of `shape`, 1 where that is empty.
  int64_t width() const;

  // "int64", "list<list<string>>", "float32[16]".
  std::string ToString() const;

  friend bool operator==(const ColumnType&, const ColumnType&) = default;
};

// One column to read: the name under which it is looked for, and the form in which it is wanted. A file's own type must
// be this one, but that its innermost lists may be wanted as fixed dimensions; nothing is converted.
struct Field {
  std::string name;
  ColumnType type;

  // Bytes of one value, ValueTypeSize(type.value) of them in the machine's order; for a string any number. Where given,
  // a null value reads as it, a null list as an empty list, and a column that a file lacks as a column of it (of empty
  // lists, where the field is ragged). Where not given, each of these is an error. NaN is a value and no null.
  std::optional<std::string> default_value;
};

// Bytes and what keeps them alive. `data` may point into the middle of what `owner` owns (a slice, or memory that Arrow
// allocated), so it has the alignment of its type, but not more than that. Never written to once shared, and so safe to
// read from any thread. `data` may be null where `bytes` is 0.
struct Buffer {
  const void* data = nullptr;
  int64_t bytes = 0;
  std::shared_ptr<const void> owner;

  template <typename T>
  const T* as() const {
    return static_cast<const T*>(data);
  }
};

// `bytes` uninitialised bytes on a 64-byte border; `*data` is where to write them before the buffer is shared. The
// border is what TensorFlow asks of a tensor: a buffer from here can be handed on without a copy. Running out of memory
// is RESOURCE_EXHAUSTED.
Result<Buffer> AllocateBuffer(int64_t bytes, void** data);

// Rows of one column, decoded. The type of its field is not repeated here but for what is needed to cut and join rows.
//
// What holds for every column, and what the functions below rely on without checking it:
//   - splits begin with 0 and never fall; the last position of a level is the number of elements of the next one;
//   - V is `width` times the last position of the last level, or B * width where nothing is ragged;
//   - `values.bytes` is V times the size of a value; for strings it may be more, as slices share one buffer of bytes.
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
// The range must lie inside the column. No value is touched: what it costs are 8 bytes for each element of each ragged
// level inside the range, as splits have to begin with 0. Offsets of strings need not, and are shared.
// RESOURCE_EXHAUSTED is the only error.
Result<Column> Slice(const Column& column, int64_t first, int64_t rows);

// Rows [first, first + rows) of a column: a word of what Gather puts together. The column must outlive it.
struct RowRun {
  const Column* column = nullptr;
  int64_t first = 0;
  int64_t rows = 0;
};

// The rows of all `runs` (at least one; of columns of one type, width and depth), in order, copied. Rows may come from
// anywhere and more than once. The result shares no memory with them, and strings lie in it without gaps. Long runs
// cost what copying their bytes costs, single rows some nanoseconds more each. RESOURCE_EXHAUSTED is the only error.
Result<Column> Gather(const std::vector<RowRun>& runs);

// Gather of all rows of all `parts`, of which there is at least one.
Result<Column> Concatenate(const std::vector<Column>& parts);

// Rows of all fields of a source, in the order of the fields. A value like its columns.
struct Batch {
  int64_t rows = 0;
  std::vector<Column> columns;
};

// `rows` rows that hold nothing but the field's default value, or empty lists where the field is ragged. The field must
// have a default. RESOURCE_EXHAUSTED is the only error.
Result<Column> DefaultColumn(const Field& field, int64_t rows);

}  // namespace lockstep::columnar
