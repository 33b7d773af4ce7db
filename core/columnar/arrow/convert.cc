#include "core/columnar/arrow/convert.h"

#include <arrow/array.h>
#include <arrow/compute/cast.h>
#include <arrow/extension_type.h>
#include <arrow/status.h>
#include <arrow/type.h>
#include <arrow/util/bit_util.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <string_view>
#include <vector>

#include "core/base/strings.h"

// An array is taken apart from the outside in. Each list level stores its offsets and passes the range of values that
// they span to the next level, until the leaf's buffer is reached. An error in a nested list must name the row of the
// file, at any depth. For that, `Walk` keeps the splits so far.
//
//   list<fixed_size_list<float>[2]>, wanted as {kFloat32, 1, {2}}
//
//   ListArray            offsets 3 4 6   (a slice)   ->  splits[0]  0 1 3, continues with elements [3, 6)
//   FixedSizeListArray   size 2 is the dimension     ->  continues with values [6, 12)
//   FloatArray           offset 6, buffer            ->  values: 6 floats, buffer + 6 * 4, no copy
//
// These parts are copied. Splits, because Arrow's are 32 bits wide and begin anywhere. Offsets of strings, which are 32
// bits wide as well. Bools, which Arrow packs into bits. Numbers and strings whose nulls are replaced by a default. All
// other bytes stay where Arrow decoded them, and the array owns them.
//
// No content of a file is trusted. A damaged page without a checksum may be decoded by Arrow without an error. So
// offsets are checked to be ascending and inside of their values before they are used. One pass over 4 or 8 bytes for
// each list or string is cheap beside its decoding.
namespace lockstep::columnar {
namespace {

// Returns the value type of a type that is neither nested nor a dictionary, or nothing if it has none.
std::optional<ValueType> LeafType(const arrow::DataType& type) {
  switch (type.id()) {
    case arrow::Type::NA: return ValueType::kNull;
    case arrow::Type::BOOL: return ValueType::kBool;
    case arrow::Type::INT8: return ValueType::kInt8;
    case arrow::Type::INT16: return ValueType::kInt16;
    case arrow::Type::UINT8: return ValueType::kUInt8;
    case arrow::Type::UINT16: return ValueType::kUInt16;
    case arrow::Type::UINT32: return ValueType::kUInt32;
    case arrow::Type::UINT64: return ValueType::kUInt64;
    case arrow::Type::HALF_FLOAT: return ValueType::kFloat16;
    case arrow::Type::FLOAT: return ValueType::kFloat32;
    case arrow::Type::DOUBLE: return ValueType::kFloat64;
    case arrow::Type::INT32:
    case arrow::Type::DATE32:
    case arrow::Type::TIME32: return ValueType::kInt32;
    case arrow::Type::INT64:
    case arrow::Type::DATE64:
    case arrow::Type::TIME64:
    case arrow::Type::TIMESTAMP:
    case arrow::Type::DURATION: return ValueType::kInt64;
    case arrow::Type::STRING:
    case arrow::Type::BINARY:
    case arrow::Type::LARGE_STRING:
    case arrow::Type::LARGE_BINARY:
    case arrow::Type::STRING_VIEW:
    case arrow::Type::BINARY_VIEW:
    case arrow::Type::FIXED_SIZE_BINARY: return ValueType::kString;
    default: return std::nullopt;
  }
}

// Returns the storage type of an extension type; any other type unchanged.
const arrow::DataType& Storage(const arrow::DataType& type) {
  if (type.id() != arrow::Type::EXTENSION) return type;
  return Storage(*static_cast<const arrow::ExtensionType&>(type).storage_type());
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text;
  for (int64_t dimension : shape) text += (text.empty() ? "" : ", ") + std::to_string(dimension);
  return "[" + text + "]";
}

// Returns memory inside of an array as a buffer that owns the array.
template <typename T>
Buffer Owned(std::shared_ptr<arrow::Array> array, const T* data, int64_t bytes) {
  return {data, bytes, std::move(array)};
}

// One pass over an array. The object keeps the column so far, because messages look back at its levels. It is used
// once.
class Walk {
 public:
  Walk(const Field& field, const std::function<int64_t(int64_t)>& file_row) : field_(field), file_row_(file_row) {}

  Result<Column> Run(std::shared_ptr<arrow::Array> array) {
    column_.type = field_.type.value;
    column_.rows = array->length();
    column_.width = field_.type.width();
    while (true) {
      if (array->type_id() == arrow::Type::EXTENSION) {
        array = static_cast<const arrow::ExtensionArray&>(*array).storage();
      } else if (array->type_id() == arrow::Type::LIST) {
        LOCKSTEP_ASSIGN_OR_RETURN(array, Lists(static_cast<const arrow::ListArray&>(*array)));
      } else if (array->type_id() == arrow::Type::LARGE_LIST) {
        LOCKSTEP_ASSIGN_OR_RETURN(array, Lists(static_cast<const arrow::LargeListArray&>(*array)));
      } else if (array->type_id() == arrow::Type::FIXED_SIZE_LIST) {
        LOCKSTEP_ASSIGN_OR_RETURN(array, FixedSizeLists(static_cast<const arrow::FixedSizeListArray&>(*array)));
      } else {
        LOCKSTEP_RETURN_IF_ERROR(Leaf(std::move(array)));
        return std::move(column_);
      }
    }
  }

 private:
  // Returns "row 17": the row, in the file, of element `index` of the level that is being read. It works from the
  // inside out. Fixed dimensions divide the index. In each ragged level, the search finds the last element that begins
  // at or before the index. The function upper_bound steps over empty lists, which begin at the same position but hold
  // nothing.
  std::string Row(int64_t index) const {
    for (int64_t dimension : fixed_) index /= dimension;
    for (size_t level = column_.splits.size(); level-- > 0;) {
      const auto* splits = column_.splits[level].as<int64_t>();
      const auto* end = splits + column_.splits[level].bytes / 8;
      index = std::upper_bound(splits, end, index) - splits - 1;
    }
    return "row " + std::to_string(file_row_(index));
  }

  // Checks that no element is null, unless the field has a default. `what` names an element that is not a whole row.
  Status CheckNulls(const arrow::Array& array, std::string_view what) const {
    if (array.null_count() == 0 || field_.default_value) return OkStatus();
    int64_t index = 0;
    while (array.IsValid(index)) ++index;
    const bool is_row = column_.splits.empty() && fixed_.empty();
    return DataLoss(StrCat(Row(index), is_row ? "" : StrCat(" holds a ", what, " that"),
                           " is null, and the field has no default_value"));
  }

  // Reads one level of lists with 32- or 64-bit offsets. It becomes a ragged level as long as the field wants one more,
  // and a fixed dimension after that. A null list that is allowed becomes an empty list, because Parquet stores no
  // values for it. Returns the values that the lists span.
  template <typename ListArray>
  Result<std::shared_ptr<arrow::Array>> Lists(const ListArray& lists) {
    LOCKSTEP_RETURN_IF_ERROR(CheckNulls(lists, "list"));
    const auto* offsets = lists.raw_value_offsets();
    const int64_t length = lists.length(), first = offsets[0], last = offsets[length];
    // Descending offsets in between are damage, even if the first and the last one look good.
    for (int64_t i = 0; i < length; ++i) {
      if (offsets[i + 1] < offsets[i]) return DataLoss(Row(i) + " has a list of negative length");
    }
    if (first < 0 || last > lists.values()->length()) return DataLoss("lists reach beyond their values");
    if (static_cast<int>(column_.splits.size()) < field_.type.ragged_rank) {
      void* data = nullptr;
      LOCKSTEP_ASSIGN_OR_RETURN(Buffer splits, AllocateBuffer((length + 1) * 8, &data));
      for (int64_t i = 0; i <= length; ++i) static_cast<int64_t*>(data)[i] = offsets[i] - first;
      column_.splits.push_back(std::move(splits));
    } else {
      LOCKSTEP_ASSIGN_OR_RETURN(int64_t dimension, NextDimension());
      for (int64_t i = 0; i < length; ++i) {
        if (offsets[i + 1] - offsets[i] == dimension) continue;
        return InvalidArgument(Row(i) + " has a list of " + std::to_string(offsets[i + 1] - offsets[i]) +
                               " values, wanted shape " + ShapeText(field_.type.shape));
      }
      fixed_.push_back(dimension);
    }
    return lists.values()->Slice(first, last - first);
  }

  // Reads one level of lists that all have the length of their type. They have no offsets, so only the dimension is
  // kept. A null list takes as many values as other lists; its null values get the default at the leaf.
  Result<std::shared_ptr<arrow::Array>> FixedSizeLists(const arrow::FixedSizeListArray& lists) {
    LOCKSTEP_RETURN_IF_ERROR(CheckNulls(lists, "list"));
    LOCKSTEP_ASSIGN_OR_RETURN(int64_t dimension, NextDimension());
    const int64_t size = lists.list_type()->list_size();
    if (size != dimension) {
      return InvalidArgument("lists have " + std::to_string(size) + " values, wanted shape " +
                             ShapeText(field_.type.shape));
    }
    if (lists.value_offset(lists.length()) > lists.values()->length())
      return DataLoss("lists reach beyond their values");
    fixed_.push_back(dimension);
    return lists.values()->Slice(lists.value_offset(0), lists.length() * size);
  }

  // Returns the next fixed dimension that the field wants. ParquetFile::Check has compared the depths, so a lack of
  // dimensions is a bug.
  Result<int64_t> NextDimension() const {
    if (fixed_.size() < field_.type.shape.size()) return field_.type.shape[fixed_.size()];
    return Internal("lists are nested deeper than " + field_.type.ToString());
  }

  // Reads nulls without a type. They may stand for values or for lists, so they read as the rows of a column that a
  // file lacks.
  Status Nulls(const arrow::Array& array) {
    LOCKSTEP_RETURN_IF_ERROR(CheckNulls(array, "value"));
    Field rest = field_;
    rest.type.ragged_rank -= static_cast<int>(column_.splits.size());
    rest.type.shape.erase(rest.type.shape.begin(), rest.type.shape.begin() + static_cast<int64_t>(fixed_.size()));
    // Without a default, the array is empty.
    if (!rest.default_value) rest.default_value.emplace(ValueTypeSize(rest.type.value), '\0');
    LOCKSTEP_ASSIGN_OR_RETURN(Column nulls, DefaultColumn(rest, array.length()));
    std::move(nulls.splits.begin(), nulls.splits.end(), std::back_inserter(column_.splits));
    column_.count = nulls.count;
    column_.values = std::move(nulls.values);
    column_.offsets = std::move(nulls.offsets);
    return OkStatus();
  }

  // Reads the values themselves, below all lists.
  Status Leaf(std::shared_ptr<arrow::Array> array) {
    if (array->type_id() == arrow::Type::DICTIONARY) {
      const auto& type = static_cast<const arrow::DictionaryType&>(*array->type());
      // A dictionary of strings would save memory, but a tensor of strings needs that memory anyway.
      LOCKSTEP_RETURN_IF_ERROR(Cast(type.value_type(), &array));
    }
    if (array->type_id() == arrow::Type::STRING_VIEW || array->type_id() == arrow::Type::BINARY_VIEW) {
      LOCKSTEP_RETURN_IF_ERROR(Cast(arrow::large_binary(), &array));
    }
    if (array->type_id() == arrow::Type::NA) return Nulls(*array);
    if (LeafType(*array->type()) != field_.type.value) {
      return Internal("values are " + array->type()->ToString() + ", wanted " + field_.type.ToString());
    }
    LOCKSTEP_RETURN_IF_ERROR(CheckNulls(*array, "value"));
    column_.count = array->length();
    switch (array->type_id()) {
      case arrow::Type::BOOL: return Bools(static_cast<const arrow::BooleanArray&>(*array));
      case arrow::Type::STRING:
      case arrow::Type::BINARY: return Strings<arrow::BinaryArray>(array);
      case arrow::Type::LARGE_STRING:
      case arrow::Type::LARGE_BINARY: return Strings<arrow::LargeBinaryArray>(array);
      case arrow::Type::FIXED_SIZE_BINARY: return FixedSizeStrings(array);
      default: return Numbers(array);
    }
  }

  // Replaces the array by a copy in another type. A value that the other type cannot hold is an error.
  Status Cast(const std::shared_ptr<arrow::DataType>& type, std::shared_ptr<arrow::Array>* array) {
    auto cast = arrow::compute::Cast(**array, type, arrow::compute::CastOptions::Safe());
    if (!cast.ok()) return FromArrow(cast.status());
    *array = *std::move(cast);
    return OkStatus();
  }

  // Reads values of a fixed size: shares them, or copies them to replace nulls by the default. Arrow does not specify
  // the bytes of a null.
  Status Numbers(const std::shared_ptr<arrow::Array>& array) {
    const int64_t size = ValueTypeSize(column_.type), bytes = column_.count * size;
    const arrow::ArrayData& data = *array->data();
    const uint8_t* values = data.buffers[1] == nullptr ? nullptr : data.buffers[1]->data() + data.offset * size;
    if (bytes > 0 && (values == nullptr || data.buffers[1]->size() < (data.offset + column_.count) * size)) {
      return DataLoss("values are missing from their buffer");
    }
    column_.values = Owned(array, values, bytes);
    if (array->null_count() == 0) return OkStatus();
    void* copy = nullptr;
    LOCKSTEP_ASSIGN_OR_RETURN(column_.values, AllocateBuffer(bytes, &copy));
    std::memcpy(copy, values, bytes);
    for (int64_t i = 0; i < column_.count; ++i) {
      if (array->IsNull(i)) std::memcpy(static_cast<char*>(copy) + i * size, field_.default_value->data(), size);
    }
    return OkStatus();
  }

  // Reads bools: Arrow has a bit for each, tensors have a byte.
  Status Bools(const arrow::BooleanArray& array) {
    void* data = nullptr;
    LOCKSTEP_ASSIGN_OR_RETURN(column_.values, AllocateBuffer(column_.count, &data));
    auto* bytes = static_cast<char*>(data);
    for (int64_t i = 0; i < column_.count; ++i) bytes[i] = array.Value(i) ? 1 : 0;
    if (array.null_count() == 0) return OkStatus();
    for (int64_t i = 0; i < column_.count; ++i) {
      if (array.IsNull(i)) bytes[i] = (*field_.default_value)[0];
    }
    return OkStatus();
  }

  // Reads strings with 32- or 64-bit offsets: the offsets are widened, the bytes are shared. A slice's offsets begin
  // anywhere; they keep their values, and the column shares the whole buffer of bytes.
  template <typename BinaryArray>
  Status Strings(const std::shared_ptr<arrow::Array>& array) {
    const auto& strings = static_cast<const BinaryArray&>(*array);
    const auto* from = strings.raw_value_offsets();
    const int64_t limit = strings.value_data() == nullptr ? 0 : strings.value_data()->size();
    void* data = nullptr;
    LOCKSTEP_ASSIGN_OR_RETURN(column_.offsets, AllocateBuffer((column_.count + 1) * 8, &data));
    auto* offsets = static_cast<int64_t*>(data);
    offsets[0] = column_.count == 0 ? 0 : from[0];
    bool ordered = offsets[0] >= 0;
    for (int64_t i = 1; i <= column_.count; ++i) {
      offsets[i] = from[i];
      ordered &= offsets[i] >= offsets[i - 1];
    }
    if (!ordered || offsets[column_.count] > limit) return DataLoss("strings reach beyond their bytes");
    column_.values = Owned(array, limit == 0 ? nullptr : strings.value_data()->data(), limit);
    return array->null_count() == 0 ? OkStatus() : FillStrings(*array);
  }

  // Reads strings of one size. They have no offsets in Arrow, so offsets are made, counted from the array's first byte.
  Status FixedSizeStrings(const std::shared_ptr<arrow::Array>& array) {
    const auto& strings = static_cast<const arrow::FixedSizeBinaryArray&>(*array);
    const int64_t size = strings.byte_width();
    void* data = nullptr;
    LOCKSTEP_ASSIGN_OR_RETURN(column_.offsets, AllocateBuffer((column_.count + 1) * 8, &data));
    for (int64_t i = 0; i <= column_.count; ++i) static_cast<int64_t*>(data)[i] = i * size;
    column_.values = Owned(array, column_.count == 0 ? nullptr : strings.raw_values(), column_.count * size);
    return array->null_count() == 0 ? OkStatus() : FillStrings(*array);
  }

  // Copies strings and their offsets with the default in place of nulls. The old buffers are held until the end,
  // because the new ones replace them in the column.
  Status FillStrings(const arrow::Array& array) {
    const Buffer old_values = column_.values, old_offsets = column_.offsets;
    const auto* from = old_offsets.as<int64_t>();
    const std::string& fill = *field_.default_value;
    const auto fill_size = static_cast<int64_t>(fill.size());
    void* data = nullptr;
    LOCKSTEP_ASSIGN_OR_RETURN(column_.offsets, AllocateBuffer((column_.count + 1) * 8, &data));
    auto* offsets = static_cast<int64_t*>(data);
    offsets[0] = 0;
    for (int64_t i = 0; i < column_.count; ++i) {
      offsets[i + 1] = offsets[i] + (array.IsNull(i) ? fill_size : from[i + 1] - from[i]);
    }
    LOCKSTEP_ASSIGN_OR_RETURN(column_.values, AllocateBuffer(offsets[column_.count], &data));
    for (int64_t i = 0; i < column_.count; ++i) {
      const char* value = array.IsNull(i) ? fill.data() : old_values.as<char>() + from[i];
      std::copy_n(value, offsets[i + 1] - offsets[i], static_cast<char*>(data) + offsets[i]);
    }
    return OkStatus();
  }

  const Field& field_;
  const std::function<int64_t(int64_t)>& file_row_;
  Column column_;
  // The fixed dimensions entered so far, outermost first.
  std::vector<int64_t> fixed_;
};

}  // namespace

Status FromArrow(const arrow::Status& status) {
  if (status.ok()) return OkStatus();
  switch (status.code()) {
    case arrow::StatusCode::OutOfMemory: return ResourceExhausted(status.message());
    case arrow::StatusCode::NotImplemented: return Unimplemented(status.message());
    case arrow::StatusCode::Cancelled: return Cancelled(status.message());
    default: return DataLoss(status.message());
  }
}

Result<ColumnType> TypeFromArrow(const arrow::DataType& type) {
  ColumnType result;
  const arrow::DataType* level = &Storage(type);
  const auto no_form = [&] { return Unimplemented("type " + type.ToString() + " cannot be read as a tensor"); };
  while (true) {
    if (level->id() == arrow::Type::LIST || level->id() == arrow::Type::LARGE_LIST) {
      // In a tensor, dimensions inside a fixed one cannot be ragged.
      if (!result.shape.empty()) return no_form();
      ++result.ragged_rank;
    } else if (level->id() == arrow::Type::FIXED_SIZE_LIST) {
      result.shape.push_back(static_cast<const arrow::FixedSizeListType*>(level)->list_size());
      if (result.shape.back() < 1) return no_form();
    } else {
      break;
    }
    level = &Storage(*level->field(0)->type());
  }
  if (level->id() == arrow::Type::DICTIONARY) {
    level = static_cast<const arrow::DictionaryType*>(level)->value_type().get();
  }
  const std::optional<ValueType> leaf = LeafType(*level);
  if (!leaf) return no_form();
  result.value = *leaf;
  return result;
}

std::string UnitFromArrow(const arrow::DataType& type) {
  const arrow::DataType& storage = Storage(type);
  switch (storage.id()) {
    case arrow::Type::LIST:
    case arrow::Type::LARGE_LIST:
    case arrow::Type::FIXED_SIZE_LIST: return UnitFromArrow(*storage.field(0)->type());
    case arrow::Type::DICTIONARY:
      return UnitFromArrow(*static_cast<const arrow::DictionaryType&>(storage).value_type());
    case arrow::Type::TIMESTAMP:
      return arrow::timestamp(static_cast<const arrow::TimestampType&>(storage).unit())->ToString();
    case arrow::Type::DATE32:
    case arrow::Type::DATE64:
    case arrow::Type::TIME32:
    case arrow::Type::TIME64:
    case arrow::Type::DURATION: return storage.ToString();
    default: return "";
  }
}

Result<Column> ColumnFromArrow(std::shared_ptr<arrow::Array> array, const Field& field,
                               const std::function<int64_t(int64_t)>& file_row) {
  return Walk(field, file_row).Run(std::move(array));
}

}  // namespace lockstep::columnar
