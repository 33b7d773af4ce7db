#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/columnar/column/parquet_file.h"

// Access to files on this machine and on all file systems that Arrow supports, by the scheme of a name.
//
//   s3://bucket/folder/*.parquet?region=eu-west-1&endpoint_override=...      options behind a '?', as Arrow takes them
//   hdfs://namenode:8020/folder     gs://bucket/folder     viewfs://..., abfs://...
//
// Keys and endpoints that a name does not give are found like those systems' own tools find them (AWS_* variables,
// ~/.aws, HADOOP_HOME, ...). All functions but IsRemote need Arrow, and return LoadArrow's error without it. All are
// thread-safe.
namespace lockstep::columnar {

// Returns whether the name begins with a scheme other than file://.
bool IsRemote(std::string_view name);

// Opens a Parquet or ORC file, local or remote; its first bytes tell the format. Reads the footer and nothing else.
// ParquetFile lists the errors; a remote file may also give UNIMPLEMENTED for a scheme that this build of Arrow does
// not know, and UNAVAILABLE if the file system cannot be reached.
Result<std::shared_ptr<ParquetFile>> OpenParquetFile(const std::string& path);

// Reads the whole file and passes its bytes to `use`, piece by piece. Returns the errors of opening and of reading it.
Status ReadFile(const std::string& name, const std::function<void(std::string_view)>& use);

// Does the same as ExpandPaths for one remote name: a file, a folder, or a pattern with * and [...] ('?' begins the
// options). The returned names have the scheme and options of `name` and are sorted bytewise.
Result<std::vector<std::string>> ExpandRemote(const std::string& name);

}  // namespace lockstep::columnar
