#include "core/columnar/column/parquet_file.h"

#include <algorithm>

namespace lockstep::columnar {
namespace {

// Returns whether lists of `found` can be read as `wanted`: the types are equal, or the innermost ragged levels are
// wanted as fixed dimensions. The number of levels stays the same. Dimensions that the file fixes have to be equal,
// counted from the inside.
bool Fits(const ColumnType& found, const ColumnType& wanted) {
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

Status ParquetFile::Check(const std::vector<Field>& fields) const {
  for (const Field& field : fields) {
    const FileColumn* found = nullptr;
    for (const FileColumn& column : columns_) {
      if (column.name != field.name) continue;
      if (found != nullptr) return InvalidArgument(FileText(path_) + " has more than one column '" + field.name + "'");
      found = &column;
    }
    if (found == nullptr) {
      if (field.default_value) continue;
      return NotFound(FileText(path_) + " has no column '" + field.name + "': it has " + ColumnNames());
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
