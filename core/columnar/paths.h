#pragma once

#include <string>
#include <vector>

#include "core/base/status.h"

namespace lockstep::columnar {

// The files that `names` mean, in an order that is the same on every machine: the names' own order, and bytewise order
// inside what one name stands for. A name is
//   - a file, absolute or relative to the working folder, or with file:// before its absolute path;
//   - a folder: all files under it, however deep, but for those whose name, or a folder's on the way, begins with '.'
//     or '_' (as Spark and Hive leave them behind); symbolic links are followed;
//   - one of these in another file system, by its scheme: s3://, hdfs://, gs://, ... (filesystem.h);
//   - a pattern with *, ? or [...], where no file has that very name: the files and folders that match, as above, but
//     for hidden ones here too: a leading '.' or '_' of a name or a folder has to be written out.
// A file that two names mean is there twice. Whether the files can be read is not looked at.
//
// NOT_FOUND names what does not exist or matches nothing, UNIMPLEMENTED a scheme that is not known, UNAVAILABLE a file
// system that cannot be reached, INVALID_ARGUMENT an
// empty name or list, INTERNAL a folder that cannot be listed or a path that cannot be looked up. Thread-safe; relative
// names depend on the working folder of the process.
Result<std::vector<std::string>> ExpandPaths(const std::vector<std::string>& names);

}  // namespace lockstep::columnar
