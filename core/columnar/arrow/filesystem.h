#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace arrow::io {
class RandomAccessFile;
}  // namespace arrow::io

// Access to files by their names (files/files.h) through Arrow. A file system is created when its first name comes, and
// kept, because a client of an object store costs connections. All functions are thread-safe.
namespace lockstep::columnar {

// Opens the file for reading. NOT_FOUND if there is none, INVALID_ARGUMENT for a folder, DATA_LOSS for an empty file,
// UNIMPLEMENTED for a scheme that this build of Arrow does not know, UNAVAILABLE if the file system cannot be reached.
// Messages begin with the file.
Result<std::shared_ptr<arrow::io::RandomAccessFile>> OpenFile(const std::string& name);

// Implements ReadFile (files/files.h).
Status ReadWithArrow(const std::string& name, const std::function<void(std::string_view)>& use);

// Implements ExpandRemote (files/files.h).
Result<std::vector<std::string>> ExpandWithArrow(const std::string& name);

}  // namespace lockstep::columnar
