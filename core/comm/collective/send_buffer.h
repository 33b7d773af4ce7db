#pragma once

#include <cstdint>
#include <memory>

#include "core/comm/collective/communicator.h"

namespace lockstep {

// Memory for the data that a step sends to its peers. It is shared memory if the communicator has some left, so that
// the peers read it in place, and private memory otherwise. Its bytes are not cleared. It belongs to one step: filled
// before the exchange, not touched while it runs, freed after it. Movable; thread-compatible.
class SendBuffer {
 public:
  SendBuffer(Communicator& communicator, int64_t bytes);
  // Returns the memory; it is not null, even for 0 bytes.
  char* data() const { return data_; }

 private:
  std::shared_ptr<SharedBuffer> shared_;
  std::unique_ptr<char[]> owned_;
  char* data_;
};

}  // namespace lockstep
