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

// Access to files on this machine and on all file systems that Arrow supports, by the scheme of a name. A file system
// is created when its first name comes, and kept, because a client of an object store costs connections.
//
//   s3://bucket/folder/*.parquet?region=eu-west-1&endpoint_override=...      options behind a '?', as Arrow takes them
//   hdfs://namenode:8020/folder     gs://bucket/folder     viewfs://..., abfs://...
//
// Keys and endpoints that a name does not give are found like those systems' own tools find them (AWS_* variables,
// ~/.aws, HADOOP_HOME, ...). All functions are thread-safe.
namespace lockstep::columnar {

// Returns whether the name begins with a scheme other than file://.
bool IsRemote(std::string_view name);

// Opens the file for reading. NOT_FOUND if there is none, INVALID_ARGUMENT for a folder, DATA_LOSS for an empty file,
// UNIMPLEMENTED for a scheme that this build of Arrow does not know, UNAVAILABLE if the file system cannot be reached.
// Messages begin with the file.
Result<std::shared_ptr<arrow::io::RandomAccessFile>> OpenFile(const std::string& name);

// Reads the whole file and passes its bytes to `use`, piece by piece. Errors are those of OpenFile, and those of
// reading.
Status ReadFile(const std::string& name, const std::function<void(std::string_view)>& use);

// Does the same as ExpandPaths for one remote name: a file, a folder, or a pattern with * and [...] ('?' begins the
// options). The returned names have the scheme and options of `name` and are sorted bytewise.
Result<std::vector<std::string>> ExpandRemote(const std::string& name);

}  // namespace lockstep::columnar
