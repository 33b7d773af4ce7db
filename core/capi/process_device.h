#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "core/base/status.h"
#include "core/comm/options.h"
#include "core/device/comm/device_communicator.h"

namespace lockstep {

// The GPU of this process.
struct ProcessDevice {
  int number = 0;  // in the library for GPUs
  // Returns memory of the GPU from TensorFlow's allocator, which owns nearly all of it. No work uses it any more. Null:
  // the library's.
  std::function<Result<std::shared_ptr<void>>(int64_t bytes)> allocate = nullptr;
};

// Notes the GPU of the process's first kernel for GPUs, and returns the number of the noted one: later calls note
// nothing. Thread-safe.
int NoteProcessDevice(const ProcessDevice& device);

// Returns how this process's GPU takes part in a job with these options: the noted one, or else the only one.
// FAILED_PRECONDITION if the library for GPUs cannot be loaded, or if the process has several GPUs and none is noted.
// Thread-safe.
Result<device::CommOptions> DeviceCommOptions(const ContextOptions& job);

}  // namespace lockstep
