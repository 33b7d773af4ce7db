#include "core/comm/shm/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "core/base/strings.h"

namespace lockstep::shm {
namespace {

Status OutOf(const char* what, int64_t bytes) {
  return ResourceExhausted(StrCat(what, " of ", bytes, " bytes of shared memory: ", std::strerror(errno)));
}

}  // namespace

// It has no name, but a mode with which no other user may open it: a process that sees this process's descriptors still
// has to run as its user. F_SEAL_SEAL comes last, so that the other seals cannot be changed. All processes that have it
// may write to it.
Result<UniqueFd> Segment::Make(const Layout& layout) {
  UniqueFd fd(memfd_create("lockstep", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const int64_t bytes = layout.TotalBytes();
  if (!fd.valid()) return OutOf("memfd_create", bytes);
  if (fchmod(fd.get(), S_IRUSR | S_IWUSR) != 0) return ErrnoStatus("fchmod of shared memory", errno);
  if (ftruncate(fd.get(), bytes) != 0) return OutOf("ftruncate", bytes);
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return ErrnoStatus("sealing shared memory", errno);
  }
  return fd;
}

// MAP_NORESERVE, because the heaps are far larger than the memory that most jobs touch.
Result<std::shared_ptr<Segment>> Segment::Map(const UniqueFd& fd, const Layout& layout) {
  const int64_t bytes = layout.TotalBytes();
  struct stat info = {};
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus("fstat of shared memory", errno);
  if (info.st_size != bytes) return Internal(StrCat("shared memory has ", info.st_size, " bytes, wanted ", bytes));
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  if (base == MAP_FAILED) return OutOf("mmap", bytes);
  // Large pages, if the system grants them on request, halve the time of large reductions. Otherwise this does no harm.
  (void)madvise(static_cast<char*>(base) + layout.Heaps(), bytes - layout.Heaps(), MADV_HUGEPAGE);
  return std::shared_ptr<Segment>(new Segment(static_cast<char*>(base), layout));
}

Segment::~Segment() { munmap(base_, layout_.TotalBytes()); }

}  // namespace lockstep::shm
