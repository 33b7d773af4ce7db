#pragma once

#include <string>

#include "core/base/status.h"

namespace lockstep {

// Returns when what was written to a file has reached its disk, whichever process wrote it (fsync): it is there after
// a loss of power, too. NOT_FOUND where there is no such file. Blocks; any thread.
Status SyncFile(const std::string& path);

// The same for the names in a folder: files that were made, renamed or removed there. "" is the working folder.
Status SyncFolder(const std::string& path);

}  // namespace lockstep
