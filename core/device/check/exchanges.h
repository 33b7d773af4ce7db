#pragma once

#include <string>
#include <vector>

#include "core/base/loadable.h"
#include "core/device/comm/nccl_api.h"

namespace lockstep::device {

// Collectives of one backend and number of ranks on device 0.
struct Exchange {
  std::string name;     // "nccl, 1 rank"
  std::string failure;  // the first error or difference; "" if there was none
  std::string refusal;  // why the backend makes no communicator of these ranks; "" if it does
};

// Compares collectives of tensors in the device's memory with the CPU's collectives, bit for bit. It tries three jobs:
// NCCL with one rank, which takes the sums itself, so that its kernels run; NCCL with two ranks, which it may refuse on
// one device; and the backend 'staged' with two. The ranks are processes. This process forks them, so it must not have
// used a device before. Takes at most a minute for each job if something hangs.
std::vector<Exchange> CheckExchanges(const LibraryPlace& place, const NcclPlace& nccl);

}  // namespace lockstep::device
