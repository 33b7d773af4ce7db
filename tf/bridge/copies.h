#pragma once

#include <memory>

#include "core/base/parallel.h"
#include "core/base/status.h"
#include "core/comm/collective/communicator.h"
#include "tensorflow/core/framework/tensor.h"

namespace lockstep {

// Memory for copies of one value at several times, one after another. Most of the time of a copy into new memory goes
// to the memory's pages. Therefore the memory is kept. Thread-compatible.
class CopyMemory {
 public:
  // Returns a copy of a tensor. It takes the memory of the copy before, if that has no owner any more and the size is
  // the same. RESOURCE_EXHAUSTED without memory.
  Result<tensorflow::Tensor> Copy(const tensorflow::Tensor& value, const ParallelFor& parallel);
  // Gives the memory back, once the last copy has no owner.
  void Release() { kept_.reset(); }

 private:
  std::shared_ptr<SharedBuffer> kept_;
};

}  // namespace lockstep
