#include "core/capi/describe_parquet.h"

#include <string>
#include <vector>

#include "core/columnar/column/parquet_file.h"
#include "core/columnar/files/files.h"
#include "core/columnar/paths.h"

namespace lockstep {
namespace {

// Appends a JSON string. Quotes, backslashes and control characters are escaped, as JSON demands. All other bytes are
// copied, so that a path in an encoding other than UTF-8 reaches Python unchanged. So little output needs no library.
void AppendJson(const std::string& text, std::string* out) {
  *out += '"';
  for (unsigned char c : text) {
    if (c == '"' || c == '\\') {
      (*out += '\\') += static_cast<char>(c);
    } else if (c < 0x20) {
      constexpr char kHex[] = "0123456789abcdef";
      ((*out += "\\u00") += kHex[c >> 4]) += kHex[c & 15];
    } else {
      *out += static_cast<char>(c);
    }
  }
  *out += '"';
}

// Appends one entry of "columns": its type, or the reason why it has none.
void AppendColumn(const columnar::FileColumn& column, std::string* out) {
  *out += "{\"name\": ";
  AppendJson(column.name, out);
  if (column.type.ok()) {
    *out += ", \"dtype\": ";
    AppendJson(std::string(columnar::ValueTypeName(column.type->value)), out);
    *out += ", \"ragged_rank\": " + std::to_string(column.type->ragged_rank) + ", \"shape\": [";
    for (size_t i = 0; i < column.type->shape.size(); ++i) {
      *out += (i == 0 ? "" : ", ") + std::to_string(column.type->shape[i]);
    }
    *out += "]}";
  } else {
    *out += ", \"error\": ";
    AppendJson(column.type.status().message(), out);
    *out += '}';
  }
}

// Opens only the first file, however many files the names match; the others are checked when they are read.
Result<std::string> Describe(const std::vector<std::string>& names) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> files, columnar::ExpandPaths(names));
  LOCKSTEP_ASSIGN_OR_RETURN(const std::shared_ptr<columnar::ParquetFile> file,
                            columnar::OpenParquetFile(files.front()));
  std::string text = "{\"file\": ";
  AppendJson(file->path(), &text);
  text += ", \"columns\": [";
  for (size_t i = 0; i < file->columns().size(); ++i) {
    if (i > 0) text += ", ";
    AppendColumn(file->columns()[i], &text);
  }
  return text + "]}";
}

std::string ErrorText(const Status& status) {
  std::string text = "{\"code\": ";
  AppendJson(std::string(StatusCodeName(status.code())), &text);
  text += ", \"error\": ";
  AppendJson(status.message(), &text);
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
