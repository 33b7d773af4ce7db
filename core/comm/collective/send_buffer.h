#pragma once

#include <cstdint>
#include <memory>

#include "core/comm/collective/communicator.h"

namespace lockstep {

// Memory for what a step gives to its peers: shared with them where the communicator has some left, so that they read
// it in place, and private otherwise. Its bytes are not cleared. Belongs to one step: filled before the exchange, not
// touched while it runs, freed after it. Movable; thread-compatible.
class SendBuffer {
 public:
  SendBuffer(Communicator& communicator, int64_t bytes);
  // `bytes` of them; not null, but maybe of no length.
  char* data() const { return data_; }

 private:
  std::shared_ptr<SharedBuffer> shared_;
  std::unique_ptr<char[]> owned_;
  char* data_;
};

}  // namespace lockstep
