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
  // Returns memory of the GPU from TensorFlow's allocator, which owns nearly all of it. Null: the library's.
  std::function<Result<std::shared_ptr<void>>(int64_t bytes)> allocate = nullptr;
};

// Notes the GPU of the process's first kernel for GPUs; later calls do nothing. Thread-safe.
void NoteProcessDevice(const ProcessDevice& device);

// Returns how this process's GPU takes part in a job with these options: the noted one, or else GPU 0.
// FAILED_PRECONDITION if the library for GPUs cannot be loaded. Thread-safe.
Result<device::CommOptions> DeviceCommOptions(const ContextOptions& job);

}  // namespace lockstep
