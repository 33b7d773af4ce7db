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
// page by page when it is first touched. Unmapped with the last owner. Thread-safe.
class Segment {
 public:
  // RESOURCE_EXHAUSTED where the address space or descriptors don't suffice.
  static Result<UniqueFd> Make(const Layout& layout);
  static Result<std::shared_ptr<Segment>> Map(const UniqueFd& fd, const Layout& layout);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  const Layout& layout() const { return layout_; }
  RankBlock& block(int rank) { return reinterpret_cast<RankBlock*>(base_)[rank]; }
  char* At(int64_t offset) { return base_ + offset; }

 private:
  Segment(char* base, const Layout& layout) : base_(base), layout_(layout) {}

  char* const base_;
  const Layout layout_;
};

}  // namespace lockstep::shm
