// Cutting and joining columns. Both come down to moving positions: splits and string offsets are ascending int64
// positions into the level below, and a piece of them, cut out or put behind another, differs from the original by one
// constant (Rebase).
//
//   Slice of rows [2, 4):      splits[0]   0 2 [2 3 4]   ->  0 1 2      begin, end = 2, 4 of the level below
//                              splits[1]   0 2 [2 3 6]   ->  0 1 4      begin, end = 2, 6 of the values
//                              values      1 2 [3 4 5 6]  shared
//   Concatenate (a, b):        0 2 2 | 0 1 2             ->  0 2 2 3 4  b's positions raised by a's last
//
// The level's range [begin, end) of elements is mapped through the splits to the next level's range, until the values
// are reached. All sizes are known before a buffer is allocated, so that every byte is written once.
#include "core/columnar/column.h"

#include <array>
#include <cstdlib>
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
constexpr std::array<Traits, 13> kTraits = {{
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
}};

// A cache line, the width of the widest vector registers, and what TensorFlow expects of a tensor.
constexpr int64_t kAlignment = 64;

// Copies `count` + 1 positions, moved so that they begin at `start`, to `out`. Where `out` continues a run, its first
// position is written a second time, with the same value.
void Rebase(const int64_t* positions, int64_t count, int64_t start, int64_t* out) {
  const int64_t shift = start - positions[0];
  for (int64_t i = 0; i <= count; ++i) out[i] = positions[i] + shift;
}

// Joins the positions (splits or string offsets) of all parts into one run from 0. `positions(part)` and `count(part)`
// give a part's.
Result<Buffer> JoinPositions(const std::vector<Column>& parts,
                             const std::function<const int64_t*(const Column&)>& positions,
                             const std::function<int64_t(const Column&)>& count) {
  int64_t total = 0;
  for (const Column& part : parts) total += count(part);
  void* data = nullptr;
  LOCKSTEP_ASSIGN_OR_RETURN(Buffer joined, AllocateBuffer((total + 1) * 8, &data));
  auto* out = static_cast<int64_t*>(data);
  out[0] = 0;
  for (const Column& part : parts) {
    // The last position of a part is the first of the next one.
    Rebase(positions(part), count(part), *out, out);
    out += count(part);
  }
  return joined;
}

// Elements of ragged level `level`: B at level 0, then as many as the level above has.
int64_t Elements(const Column& column, size_t level) {
  return level == 0 ? column.rows : column.splits[level - 1].as<int64_t>()[Elements(column, level - 1)];
}

// The bytes of a column's values, without what lies before or behind them: strings of a slice use a part of a buffer
// that belongs to more rows.
std::string_view ValueBytes(const Column& column) {
  const auto* data = column.values.as<char>();
  if (column.type != ValueType::kString) {
    return {data, static_cast<size_t>(column.count * ValueTypeSize(column.type))};
  }
  const auto* offsets = column.offsets.as<int64_t>();
  return {data + offsets[0], static_cast<size_t>(offsets[column.count] - offsets[0])};
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

Result<Buffer> AllocateBuffer(int64_t bytes, void** data) {
  // aligned_alloc wants a multiple of the alignment, and may give null for nothing at all.
  const int64_t rounded = (std::max<int64_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  *data = std::aligned_alloc(kAlignment, rounded);
  if (*data == nullptr)
    return ResourceExhausted("no memory for a column buffer of " + std::to_string(bytes) + " bytes");
  return Buffer{*data, bytes,
                std::shared_ptr<const void>(*data, [](const void* p) { std::free(const_cast<void*>(p)); })};
}

Result<Column> Slice(const Column& column, int64_t first, int64_t rows) {
  if (first == 0 && rows == column.rows) return column;
  Column out;
  out.type = column.type;
  out.rows = rows;
  out.width = column.width;
  int64_t begin = first, end = first + rows;
  // The range of elements that the slice takes of the level at hand: of the rows at first, of the values in the end.
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
  // The offsets' own values stay: they are positions in `values`, which is shared whole.
  if (column.type == ValueType::kString) {
    out.offsets = {column.offsets.as<int64_t>() + begin, (out.count + 1) * 8, column.offsets.owner};
  } else {
    const int64_t size = ValueTypeSize(column.type);
    out.values.data = column.values.as<char>() + begin * size;
    out.values.bytes = out.count * size;
  }
  return out;
}

Result<Column> Concatenate(const std::vector<Column>& parts) {
  Column out;
  out.type = parts[0].type;
  out.width = parts[0].width;
  int64_t bytes = 0;
  for (const Column& part : parts) {
    out.rows += part.rows;
    out.count += part.count;
    bytes += ValueBytes(part).size();
  }
  for (size_t level = 0; level < parts[0].splits.size(); ++level) {
    LOCKSTEP_ASSIGN_OR_RETURN(Buffer splits,
                              JoinPositions(
                                  parts, [&](const Column& part) { return part.splits[level].as<int64_t>(); },
                                  [&](const Column& part) { return Elements(part, level); }));
    out.splits.push_back(std::move(splits));
  }
  void* data = nullptr;
  LOCKSTEP_ASSIGN_OR_RETURN(out.values, AllocateBuffer(bytes, &data));
  for (const Column& part : parts) {
    const std::string_view values = ValueBytes(part);
    if (!values.empty()) std::memcpy(data, values.data(), values.size());
    data = static_cast<char*>(data) + values.size();
  }
  if (out.type == ValueType::kString) {
    LOCKSTEP_ASSIGN_OR_RETURN(out.offsets, JoinPositions(
                                               parts, [](const Column& part) { return part.offsets.as<int64_t>(); },
                                               [](const Column& part) { return part.count; }));
  }
  return out;
}

Result<Column> DefaultColumn(const Field& field, int64_t rows) {
  Column out;
  out.type = field.type.value;
  out.rows = rows;
  out.width = field.type.width();
  int64_t elements = rows;
  void* data = nullptr;
  // One empty list for each row; no element is left for the levels below, whose splits are the single 0.
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
