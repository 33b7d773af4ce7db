#include "core/capi/describe_parquet.h"

#include <string>
#include <vector>

#include "core/base/json_text.h"
#include "core/columnar/column/parquet_file.h"
#include "core/columnar/files/files.h"
#include "core/columnar/paths.h"

namespace lockstep {
namespace {

// Appends one entry of "columns": its type, or the reason why it has none.
void AppendColumn(const columnar::FileColumn& column, std::string* out) {
  *out += "{\"name\": ";
  *out += JsonText(column.name);
  if (column.type.ok()) {
    *out += ", \"dtype\": ";
    *out += JsonText(columnar::ValueTypeName(column.type->value));
    *out += ", \"ragged_rank\": " + std::to_string(column.type->ragged_rank) + ", \"shape\": [";
    for (size_t i = 0; i < column.type->shape.size(); ++i) {
      *out += (i == 0 ? "" : ", ") + std::to_string(column.type->shape[i]);
    }
    *out += "]}";
  } else {
    *out += ", \"error\": ";
    *out += JsonText(column.type.status().message());
    *out += '}';
  }
}

// Opens only the first file, however many files the names match; the others are checked when they are read.
Result<std::string> Describe(const std::vector<std::string>& names) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> files, columnar::ExpandPaths(names));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::shared_ptr<columnar::ParquetFile> file,
                            columnar::OpenParquetFile(files.front()));
  std::string text = "{\"file\": ";
  text += JsonText(file->path());
  text += ", \"columns\": [";
  for (size_t i = 0; i < file->columns().size(); ++i) {
    if (i > 0) text += ", ";
    AppendColumn(file->columns()[i], &text);
  }
  return text + "]}";
}

std::string ErrorText(const Status& status) {
  std::string text = "{\"code\": ";
  text += JsonText(StatusCodeName(status.code()));
  text += ", \"error\": ";
  text += JsonText(status.message());
  return text + '}';
}

}  // namespace
}  // namespace lockstep

const char* lockstep_describe_parquet(const char* const* names, int count) {
  // Keeps the answer alive after the return. It is thread-local, so that no call changes another thread's text.
  thread_local std::string text;
  auto described = lockstep::Describe(std::vector<std::string>(names, names + count));
  text = described.ok() ? *std::move(described) : lockstep::ErrorText(described.status());
  // The text outlives the call; the next call of this thread invalidates the pointer.
  return text.c_str();  // NOLINT(clang-analyzer-cplusplus.InnerPointer)
}
