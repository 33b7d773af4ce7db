#pragma once

#include <string>

#include "core/base/status.h"

namespace lockstep {

// Waits until all writes to a file have reached its disk (fsync), whichever process wrote them. They then survive a
// loss of power too. NOT_FOUND if there is no such file. Blocks; any thread.
Status SyncFile(const std::string& path);

// Does the same for the names in a folder: files that were made, renamed or removed there. "" is the working folder.
Status SyncFolder(const std::string& path);

}  // namespace lockstep
