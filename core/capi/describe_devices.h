#pragma once

// Exported by the op library, like all functions of this folder (capi.h).
#pragma GCC visibility push(default)
extern "C" {

// Describes the devices that the library for GPUs counts, for Python. Loads the library (device_place.h).
//
// Returns JSON, such as this:
// ```
//   {"runtime": "CUDA 13.0", "driver": 13000, "count": 2, "why": "", "devices": [
//      {"name": "NVIDIA H100", "major": 9, "minor": 0, "multiprocessors": 132, "memory_bytes": 85000000000,
//       "free_bytes": 84000000000, "peers": [1]}, ...]}
// ```
// driver is the CUDA version of the driver, 0 without one; why is the reason for a count of 0; peers are the devices
// whose memory this one reads. A device that cannot be asked is {"error": message}. Without `details`, "devices" is
// empty, and no device is used: asking one for its free memory takes some of it.
//
// If the library cannot be loaded: {"error": message}.
//
// The text belongs to the calling thread until its next call. Never throws; any number of threads may call at once.
const char* lockstep_describe_devices(int details);

// Loads NCCL, and returns {"version": 22809, "place": "/.../libnccl.so.2"}, or {"error": message}. Text and threads are
// as above.
const char* lockstep_describe_nccl();
}
#pragma GCC visibility pop
