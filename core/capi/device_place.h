#pragma once

#include "core/device/comm/nccl_api.h"

// Exported by the op library, like all functions of this folder (capi.h).
#pragma GCC visibility push(default)
extern "C" {

// Says where the library for GPUs lies (device/load.h); it is loaded when a device is first asked for. Only Python
// knows the folder of the installation.
//
// `library` is the file, or "" if there is none; `missing` is then the text of the error. Never throws; thread-safe.
void lockstep_set_device_library(const char* library, const char* missing);

// Says where NCCL may lie (NcclPlace): `file` is the value of LOCKSTEP_NCCL, `folder` the one of a wheel; each may be
// "". Never throws; thread-safe.
void lockstep_set_nccl(const char* file, const char* folder);
}
#pragma GCC visibility pop

namespace lockstep {

// Returns the place that lockstep_set_nccl has set; before, only the system's. Thread-safe.
device::NcclPlace ProcessNcclPlace();

}  // namespace lockstep
