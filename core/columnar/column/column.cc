// Cutting and joining columns. Both come down to moving positions: splits and string offsets are ascending int64
// positions into the level below. A piece of them that is cut out, or appended to another, differs from the original by
// one constant (Rebase).
//
//   Slice of rows [2, 4):      splits[0]   0 2 [2 3 4]   ->  0 1 2      begin, end = 2, 4 of the level below
//                              splits[1]   0 2 [2 3 6]   ->  0 1 4      begin, end = 2, 6 of the values
//                              values      1 2 [3 4 5 6]  shared
//   Gather of rows 3 and 0:    0 2 2 3 4                 ->  0 1 3      the lengths of the runs, added up
//
// The level's range [begin, end) of elements is mapped through the splits to the next level's range, until the values
// are reached. All sizes are known before a buffer is allocated, so every byte is written once.
#include "core/columnar/column/column.h"

#include <array>
#include <cstring>
#include <functional>
#include <numeric>

namespace lockstep::columnar {
namespace {

struct Traits {
  std::string_view name;
  int64_t size;
};

// In the order of the enumerators.
constexpr std::array<Traits, 14> kTraits = {{
    {"bool", 1},
    {"int8", 1},
    {"int16", 2},
    {"int32", 4},
    {"int64", 8},
    {"uint8", 1},
    {"uint16", 2},
    {"uint32", 4},
    {"uint64", 8},
    {"float16", 2},
    {"float32", 4},
    {"float64", 8},
    {"string", 0},
    {"null", 0},
}};

// Copies `count` + 1 positions to `out`, moved so that they begin at `start`. If `out` continues a run, its first
// position is written a second time with the same value.
void Rebase(const int64_t* positions, int64_t count, int64_t start, int64_t* out) {
  const int64_t shift = start - positions[0];
  for (int64_t i = 0; i <= count; ++i) out[i] = positions[i] + shift;
}

// Elements [begin, end) of the current level of one column: a run of rows on its way to the values.
struct Span {
  const Column* column;
  int64_t begin;
  int64_t end;
};

int64_t CountOf(const std::vector<Span>& spans) {
  int64_t count = 0;
  for (const Span& span : spans) count += span.end - span.begin;
  return count;
}

// Returns the positions of all spans as one run from 0. `positions(column)` returns a column's positions. Each span
// becomes the range that it covers in the level below.
template <typename Positions>
Result<Buffer> GatherPositions(std::vector<Span>* spans, const Positions& positions) {
  void* data = nullptr;
  LOCKSTEP_ASSIGN_OR_RETURN(Buffer gathered, AllocateBuffer((CountOf(*spans) + 1) * 8, &data));
  auto* out = static_cast<int64_t*>(data);
  out[0] = 0;
  for (Span& span : *spans) {
    const int64_t* from = positions(*span.column);
    // The last position of a span is the first of the next one.
    Rebase(from + span.begin, span.end - span.begin, *out, out);
    out += span.end - span.begin;
    span = {span.column, from[span.begin], from[span.end]};
  }
  return gathered;
}

// Copies the bytes of all spans, whose positions count elements of `size` bytes. If the compiler knows the size, a
// single element is moved by an instruction and not by a call.
template <int64_t kSize>
void CopySpans(const std::vector<Span>& spans, int64_t size, char* out) {
  if constexpr (kSize > 0) size = kSize;
  for (const Span& span : spans) {
    const char* from = span.column->values.as<char>() + span.begin * size;
    const int64_t count = span.end - span.begin;
    if (count == 1 && kSize > 0) {
      std::memcpy(out, from, kSize);
    } else if (count > 0) {
      std::memcpy(out, from, count * size);
    }
    out += count * size;
  }
}

}  // namespace

std::string_view ValueTypeName(ValueType type) { return kTraits[static_cast<int>(type)].name; }
int64_t ValueTypeSize(ValueType type) { return kTraits[static_cast<int>(type)].size; }

int64_t ColumnType::width() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<int64_t>());
}

std::string ColumnType::ToString() const {
  std::string text;
  for (int level = 0; level < ragged_rank; ++level) text += "list<";
  text += ValueTypeName(value);
  for (int64_t dimension : shape) text.append("[").append(std::to_string(dimension)).append("]");
  return text + std::string(ragged_rank, '>');
}

Result<Column> Slice(const Column& column, int64_t first, int64_t rows) {
  if (first == 0 && rows == column.rows) return column;
  Column out;
  out.type = column.type;
  out.rows = rows;
  out.width = column.width;
  int64_t begin = first, end = first + rows;
  // The range of elements that the slice takes of the current level: rows at first, values in the end.
  for (const Buffer& level : column.splits) {
    const auto* splits = level.as<int64_t>();
    void* data = nullptr;
    LOCKSTEP_ASSIGN_OR_RETURN(Buffer sliced, AllocateBuffer((end - begin + 1) * 8, &data));
    Rebase(splits + begin, end - begin, 0, static_cast<int64_t*>(data));
    out.splits.push_back(std::move(sliced));
    begin = splits[begin];
    end = splits[end];
  }
  begin *= column.width;
  out.count = end * column.width - begin;
  out.values = column.values;
  // The offsets keep their values: they are positions in `values`, which is shared whole.
  if (column.type == ValueType::kString) {
    out.offsets = {column.offsets.as<int64_t>() + begin, (out.count + 1) * 8, column.offsets.owner};
  } else {
    const int64_t size = ValueTypeSize(column.type);
    out.values.data = column.values.as<char>() + begin * size;
    out.values.bytes = out.count * size;
  }
  return out;
}

Result<Column> Gather(const std::vector<RowRun>& runs) {
  const Column& first = *runs.front().column;
  Column out;
  out.type = first.type;
  out.width = first.width;
  std::vector<Span> spans;
  spans.reserve(runs.size());
  for (const RowRun& run : runs) {
    out.rows += run.rows;
    spans.push_back({run.column, run.first, run.first + run.rows});
  }
  for (size_t level = 0; level < first.splits.size(); ++level) {
    LOCKSTEP_ASSIGN_OR_RETURN(Buffer splits, GatherPositions(&spans, [level](const Column& column) {
                                return column.splits[level].as<int64_t>();
                              }));
    out.splits.push_back(std::move(splits));
  }
  out.count = CountOf(spans) * out.width;
  if (out.type == ValueType::kString) {
    for (Span& span : spans) span = {span.column, span.begin * out.width, span.end * out.width};
    LOCKSTEP_ASSIGN_OR_RETURN(
        out.offsets, GatherPositions(&spans, [](const Column& column) { return column.offsets.as<int64_t>(); }));
  }
  // The bytes of one element that the spans count now: a byte of a string, or a value with its fixed dimensions.
  const int64_t size = out.type == ValueType::kString ? 1 : out.width * ValueTypeSize(out.type);
  void* data = nullptr;
  LOCKSTEP_ASSIGN_OR_RETURN(out.values, AllocateBuffer(CountOf(spans) * size, &data));
  const auto copy = size == 8 ? CopySpans<8> : size == 4 ? CopySpans<4> : CopySpans<0>;
  copy(spans, size, static_cast<char*>(data));
  return out;
}

Result<Column> Concatenate(const std::vector<Column>& parts) {
  std::vector<RowRun> runs;
  for (const Column& part : parts) runs.push_back({&part, 0, part.rows});
  return Gather(runs);
}

Result<Column> DefaultColumn(const Field& field, int64_t rows) {
  Column out;
  out.type = field.type.value;
  out.rows = rows;
  out.width = field.type.width();
  int64_t elements = rows;
  void* data = nullptr;
  // One empty list for each row. The levels below have no elements; their splits are the single 0.
  for (int level = 0; level < field.type.ragged_rank; ++level) {
    LOCKSTEP_ASSIGN_OR_RETURN(Buffer splits, AllocateBuffer((elements + 1) * 8, &data));
    std::memset(data, 0, splits.bytes);
    out.splits.push_back(std::move(splits));
    elements = 0;
  }
  out.count = elements * out.width;
  const std::string& value = field.default_value.value();
  const auto size = static_cast<int64_t>(value.size());
  LOCKSTEP_ASSIGN_OR_RETURN(out.values, AllocateBuffer(out.count * size, &data));
  for (int64_t i = 0; i < out.count; ++i) std::memcpy(static_cast<char*>(data) + i * size, value.data(), size);
  if (out.type == ValueType::kString) {
    LOCKSTEP_ASSIGN_OR_RETURN(out.offsets, AllocateBuffer((out.count + 1) * 8, &data));
    for (int64_t i = 0; i <= out.count; ++i) static_cast<int64_t*>(data)[i] = i * size;
  }
  return out;
}

}  // namespace lockstep::columnar
