#include "core/base/pages.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "core/base/strings.h"

namespace lockstep {
namespace {

constexpr int64_t kHeap = 64 << 10;
constexpr int64_t kAlignment = 256;
constexpr int64_t kSmallPage = 4096;
constexpr int64_t kLargePage = int64_t{2} << 20;

int64_t RoundUp(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

Result<Pages> Pages::Allocate(int64_t bytes, int64_t small_bytes) {
  if (bytes < kHeap) {
    bytes = RoundUp(bytes, kAlignment);
    char* block = static_cast<char*>(std::aligned_alloc(kAlignment, bytes));
    if (block == nullptr) return ResourceExhausted(StrCat("no memory for ", bytes, " bytes"));
    std::memset(block, 0, bytes);
    return Pages(block, bytes);
  }
  bytes = RoundUp(bytes, kSmallPage);
  // Memory is mapped in excess, so that it contains an aligned block. The excess is given back at once.
  const int64_t slack = bytes >= kLargePage ? kLargePage - kSmallPage : 0;
  void* mapped =
      mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    return ResourceExhausted(ErrnoStatus(StrCat("mmap of ", bytes, " bytes"), errno).message());
  }
  char* data = static_cast<char*>(mapped);
  if (slack > 0) {
    const int64_t before = RoundUp(reinterpret_cast<int64_t>(data), kLargePage) - reinterpret_cast<int64_t>(data);
    if (before > 0) munmap(data, before);
    if (before < slack) munmap(data + before + bytes, slack - before);
    data += before;
    // This is only a request: without large pages, everything works with small ones.
    small_bytes = RoundUp(small_bytes, kLargePage);
    if (small_bytes < bytes) madvise(data + small_bytes, bytes - small_bytes, MADV_HUGEPAGE);
  }
  return Pages(data, bytes);
}

void Pages::Release(int64_t begin, int64_t end) {
  begin = RoundUp(begin, kSmallPage);
  end = end / kSmallPage * kSmallPage;
  if (bytes_ >= kHeap && begin < end) madvise(data_ + begin, end - begin, MADV_DONTNEED);
}

Pages::~Pages() {
  if (data_ == nullptr) return;
  if (bytes_ < kHeap) {
    std::free(data_);
  } else {
    munmap(data_, bytes_);
  }
}

}  // namespace lockstep
