#pragma once

#include <cstdint>

#include "core/comm/named/named_device_exchange.h"
#include "core/device/comm/device_communicator.h"

// Folder device/named/: the named lane's collectives of tensors in the memory of GPUs.
//
//   named_exchange_on_device.h   executes batches with a DeviceCommunicator
//   buckets.h                    memory in which tensors of a batch lie one after another
namespace lockstep::device {

struct NamedExchangeOptions {
  CommOptions devices;  // `links` is set by the lane
  // Tensors of a batch share one collective up to so many bytes, and so much memory: the lane's fusion_bytes. The same
  // on all ranks.
  int64_t fusion_bytes = int64_t{64} << 20;
};

// Returns what a lane needs for tensors on this rank's GPU.
// ```cpp
// NamedLaneOptions options;
// options.devices = NamedExchangeOnDevice({.devices = {.library = library, .device = 0}});
// ```
// A batch is packed in a stream of the exchange, which waits for the streams of the works by events. The collective
// follows in the communicator's stream. When it has ended, a thread of the communicator puts the unpacking into the
// works' streams and ends the requests. So no thread waits for the device, except in Adasum. A tensor with a
// batch of its own is read and written in place. Results equal NamedExchange's bit for bit.
MakeNamedDeviceExchange NamedExchangeOnDevice(const NamedExchangeOptions& options);

}  // namespace lockstep::device
