#pragma once

#include <string>
#include <vector>

#include "core/base/status.h"

namespace lockstep::columnar {

// Returns the files that `names` stand for, in an order that is the same on every machine: the order of `names`, and
// bytewise order among the files of one name. A name is
//   - a file, absolute or relative to the working folder, or with file:// before its absolute path;
// - a folder: all files below it at any depth, except those whose name, or a folder's on the way, begins with '.' or
//   '_' (as left behind by Spark and Hive); symbolic links are followed;
//   - one of these in another file system, by its scheme: s3://, hdfs://, gs://, ... (files/files.h);
// - a pattern with *, ? or [...], unless a file has exactly that name: the matching files and folders, as above. Hidden
//   ones are left out too: a leading '.' or '_' of a name or a folder has to be written out.
//
// A file that two names stand for occurs twice. The files are not opened.
//
// NOT_FOUND names what does not exist or matches nothing; UNIMPLEMENTED names an unknown scheme, and UNAVAILABLE a file
// system that cannot be reached. INVALID_ARGUMENT is for an empty name or list, INTERNAL for a folder that cannot be
// listed or a path that cannot be looked up. Thread-safe; relative names depend on the process's working folder.
Result<std::vector<std::string>> ExpandPaths(const std::vector<std::string>& names);

}  // namespace lockstep::columnar
