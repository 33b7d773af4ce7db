#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/comm/collective/communicator.h"
#include "core/device/library.h"

namespace lockstep::device {

// Where to look for libnccl.so.2, if the process has not loaded it already (TensorFlow's or PyTorch's).
struct NcclPlace {
  std::string file;    // LOCKSTEP_NCCL: the path of the library; "": not set
  std::string folder;  // the folder of the wheel nvidia-nccl-cu12 or -cu13 with the library; "": no such wheel
  bool system = true;  // whether to look in the system's folders in the end
};

// NCCL's types and functions, as NVIDIA's manual describes them for version 2.16 and later. Only what is declared here
// is used, so the build needs no header of NCCL.
namespace nccl {

using Comm = struct OpaqueComm*;

// The identity of a group of communicators, made on one rank.
struct UniqueId {
  char internal[128];
};

// ncclResult_t, as far as this project tells them apart.
using Code = int;
inline constexpr Code kSuccess = 0, kInvalidUsage = 5, kRemoteError = 6, kInProgress = 7;

// ncclDataType_t and ncclRedOp_t.
enum class Type : int { kInt8, kUInt8, kInt32, kUInt32, kInt64, kUInt64, kFloat16, kFloat32, kFloat64, kBFloat16 };
enum class Op : int { kSum, kProduct, kMax, kMin, kMean };

// ncclConfig_t of version 2.14; later versions take it too, and use their defaults for what it does not have.
struct Config {
  size_t size = sizeof(Config);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21400;
  int blocking = 0;
  int unset = static_cast<int>(0x80000000);  // NCCL_CONFIG_UNDEF_INT, where later versions have their next member
};

struct Api {
  int version = 0;    // 22809 is 2.28.9
  std::string place;  // where it was found, for messages

  const char* (*GetErrorString)(Code code) = nullptr;
  Code (*GetVersion)(int* version) = nullptr;
  Code (*GetUniqueId)(UniqueId* id) = nullptr;
  Code (*CommInitRankConfig)(Comm* comm, int size, UniqueId id, int rank, Config* config) = nullptr;
  Code (*CommFinalize)(Comm comm) = nullptr;
  Code (*CommDestroy)(Comm comm) = nullptr;
  Code (*CommAbort)(Comm comm) = nullptr;
  Code (*CommGetAsyncError)(Comm comm, Code* code) = nullptr;
  Code (*GroupStart)() = nullptr;
  Code (*GroupEnd)() = nullptr;
  Code (*Send)(const void* data, size_t count, Type type, int peer, Comm comm, Stream stream) = nullptr;
  Code (*Recv)(void* data, size_t count, Type type, int peer, Comm comm, Stream stream) = nullptr;
  Code (*AllReduce)(const void* in, void* out, size_t count, Type type, Op op, Comm comm, Stream stream) = nullptr;
  Code (*ReduceScatter)(const void* in, void* out, size_t out_count, Type type, Op op, Comm comm,
                        Stream stream) = nullptr;
  Code (*Broadcast)(const void* in, void* out, size_t count, Type type, int root, Comm comm, Stream stream) = nullptr;
};

// Loads NCCL: the place's file if there is one; else the process's own library, the one of the place's folder, or the
// system's. It stays loaded. FAILED_PRECONDITION with every place and its reason if there is none of version 2.16 or
// later. is_installed: gets whether any place has a library, also one that cannot be used; null: not asked for.
// Thread-safe.
Result<std::shared_ptr<const Api>> Load(const NcclPlace& place, bool* is_installed = nullptr);

// Returns whether NCCL reduces this type itself; it has no 16-bit integers and no bools.
bool Reduces(DType dtype);
Type TypeOf(DType dtype);
Op OpOf(ReduceOp op);

}  // namespace nccl
}  // namespace lockstep::device
