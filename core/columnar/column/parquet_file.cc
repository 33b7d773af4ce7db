#include "core/columnar/column/parquet_file.h"

#include <algorithm>

namespace lockstep::columnar {
namespace {

// Returns whether nulls inside of the lists of `found` can be read as `wanted`. Each null stands for a value, or for a
// list of any depth.
bool FitsNulls(const ColumnType& found, const ColumnType& wanted) {
  const size_t levels = found.ragged_rank + found.shape.size();
  if (wanted.ragged_rank + wanted.shape.size() < levels) return false;
  if (found.shape.empty()) return true;
  return wanted.ragged_rank <= found.ragged_rank &&
         std::equal(found.shape.begin(), found.shape.end(),
                    wanted.shape.begin() + found.ragged_rank - wanted.ragged_rank);
}

// Returns whether lists of `found` can be read as `wanted`: the types are equal, or the innermost ragged levels are
// wanted as fixed dimensions. The number of levels stays the same. Dimensions that the file fixes have to be equal,
// counted from the inside.
bool Fits(const ColumnType& found, const ColumnType& wanted) {
  if (found.value == ValueType::kNull) return FitsNulls(found, wanted);
  const size_t levels = found.ragged_rank + found.shape.size();
  return found.value == wanted.value && wanted.ragged_rank <= found.ragged_rank &&
         wanted.ragged_rank + wanted.shape.size() == levels &&
         std::equal(found.shape.rbegin(), found.shape.rend(), wanted.shape.rbegin());
}

}  // namespace

std::string ParquetFile::ColumnNames() const {
  std::string names;
  for (const FileColumn& column : columns_) names += (names.empty() ? "" : ", ") + column.name;
  return names;
}

const FileColumn* ParquetFile::Find(const std::string& name) const {
  const auto found =
      std::find_if(columns_.begin(), columns_.end(), [&](const FileColumn& column) { return column.name == name; });
  return found == columns_.end() ? nullptr : &*found;
}

Status ParquetFile::Check(const std::vector<Field>& fields) const {
  for (const Field& field : fields) {
    const FileColumn* found = Find(field.name);
    if (found == nullptr) {
      if (field.default_value) continue;
      return NotFound(FileText(path_) + " has no column '" + field.name + "': it has " + ColumnNames());
    }
    if (std::count_if(columns_.begin(), columns_.end(), [&](const auto& column) { return column.name == field.name; }) >
        1) {
      return InvalidArgument(FileText(path_) + " has more than one column '" + field.name + "'");
    }
    const std::string who = ColumnText(path_, field.name);
    if (!found->type.ok()) return found->type.status().WithPrefix(who + ": ");
    if (!Fits(*found->type, field.type)) {
      return InvalidArgument(who + " is " + found->type->ToString() + ", wanted " + field.type.ToString());
    }
  }
  return OkStatus();
}

}  // namespace lockstep::columnar
