#pragma once

#include <cstdint>
#include <memory>

#include "core/base/status.h"
#include "core/base/unique_fd.h"
#include "core/comm/shm/layout.h"

namespace lockstep::shm {

// The job's shared memory, mapped into this process (layout.h describes its content). It is a memfd without a name: no
// file appears in the shared-memory folder, and nothing stays behind, however the ranks die. Its size is sealed, so
// that no peer can make our reads fail. Address space is reserved; memory is taken page by page at the first touch. It
// is unmapped with its last owner.
// ```cpp
// LOCKSTEP_ASSIGN_OR_RETURN(const UniqueFd fd, Segment::Make(layout));  // rank 0, which sends it to the others
// LOCKSTEP_ASSIGN_OR_RETURN(const std::shared_ptr<Segment> segment, Segment::Map(fd, layout));
// ```
// The descriptor may be closed after mapping. If memory runs out when a page is touched, no error can be returned: the
// kernel then ends a process, as with any other memory.
//
// Thread-safe: the mapping does not change. layout.h defines what may be read and written when.
class Segment {
 public:
  // Makes new memory of zeros, of the layout's size. RESOURCE_EXHAUSTED without enough memory or descriptors.
  static Result<UniqueFd> Make(const Layout& layout);
  // Maps the memory. RESOURCE_EXHAUSTED without enough address space. INTERNAL if the size of `fd` is not the size of
  // `layout`, which means that the ranks disagree on it.
  static Result<std::shared_ptr<Segment>> Map(const UniqueFd& fd, const Layout& layout);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  const Layout& layout() const { return layout_; }
  // `rank` is in [0, R), `offset` in [0, layout().TotalBytes()). Neither is checked.
  RankBlock& block(int rank) { return reinterpret_cast<RankBlock*>(base_)[rank]; }
  char* At(int64_t offset) { return base_ + offset; }

 private:
  Segment(char* base, const Layout& layout) : base_(base), layout_(layout) {}

  char* const base_;
  const Layout layout_;
};

}  // namespace lockstep::shm
