#include "core/base/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "core/base/unique_fd.h"

namespace lockstep {
namespace {

Status Sync(const std::string& path, int flags) {
  const UniqueFd file(open(path.c_str(), flags | O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) {
    const int error = errno;
    if (error == ENOENT) return NotFound("syncing " + path + ": there is no such file");
    return ErrnoStatus("opening " + path + " to sync it", error);
  }
  if (fsync(file.get()) == 0) return OkStatus();
  const int error = errno;
  // Some file systems cannot sync a folder and do not need to.
  if (error == EINVAL && (flags & O_DIRECTORY)) return OkStatus();
  return ErrnoStatus("syncing " + path, error);
}

}  // namespace

Status SyncFile(const std::string& path) { return Sync(path, 0); }

Status SyncFolder(const std::string& path) { return Sync(path.empty() ? "." : path, O_DIRECTORY); }

}  // namespace lockstep
