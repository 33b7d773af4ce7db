#pragma once

#include <cstdint>
#include <memory>

#include "core/base/status.h"
#include "core/base/unique_fd.h"
#include "core/comm/shm/layout.h"

namespace lockstep::shm {

// The job's shared memory, mapped into this process (layout.h says what lies in it). It is a memfd: it has no name, so
// no file is ever seen in the shared-memory folder and nothing stays behind, however the ranks die; and it is sealed
// against a change of its size, so that no peer can make our reads fail. Address space is reserved, memory is taken
// page by page when it is first touched. Unmapped with the last owner.
//
//   LOCKSTEP_ASSIGN_OR_RETURN(const UniqueFd fd, Segment::Make(layout));  // rank 0, which sends it to the others
//   LOCKSTEP_ASSIGN_OR_RETURN(const std::shared_ptr<Segment> segment, Segment::Map(fd, layout));
//
// The descriptor may be closed once it is mapped. Memory that runs out when a page is touched is no error that could be
// returned: the kernel ends a process then, as with any other memory.
//
// Thread-safe: the mapping does not change. What may be read and written in it when is the business of layout.h.
class Segment {
 public:
  // New memory of zeros, of the layout's size. RESOURCE_EXHAUSTED where memory or descriptors don't suffice.
  static Result<UniqueFd> Make(const Layout& layout);
  // RESOURCE_EXHAUSTED where the address space doesn't suffice; INTERNAL where `fd` has not the size that `layout`
  // says, so that the ranks don't agree on it.
  static Result<std::shared_ptr<Segment>> Map(const UniqueFd& fd, const Layout& layout);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  const Layout& layout() const { return layout_; }
  // `rank` in [0, R); `offset` in [0, layout().TotalBytes()). Neither is checked.
  RankBlock& block(int rank) { return reinterpret_cast<RankBlock*>(base_)[rank]; }
  char* At(int64_t offset) { return base_ + offset; }

 private:
  Segment(char* base, const Layout& layout) : base_(base), layout_(layout) {}

  char* const base_;
  const Layout layout_;
};

}  // namespace lockstep::shm
