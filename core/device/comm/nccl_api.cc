#include "core/device/comm/nccl_api.h"

#include <dlfcn.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/strings.h"

namespace lockstep::device::nccl {
namespace {

constexpr char kName[] = "libnccl.so.2";
// The first version with all functions of Api, and the oldest that a supported TensorFlow comes with.
constexpr int kLeastVersion = 21600;

std::string VersionText(int version) { return StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100); }

// Reads the functions of an open library.
class Reader {
 public:
  explicit Reader(void* library) : library_(library) {}

  template <typename Function>
  void operator()(const char* name, Function& function) {
    function = reinterpret_cast<Function>(::dlsym(library_, name));
    if (function == nullptr && missing_.empty()) missing_ = name;
  }
  const std::string& missing() const { return missing_; }

 private:
  void* const library_;
  std::string missing_;
};

Result<std::shared_ptr<const Api>> ReadApi(void* library, std::string place) {
  auto api = std::make_shared<Api>();
  Reader read(library);
  read("ncclGetErrorString", api->GetErrorString);
  read("ncclGetVersion", api->GetVersion);
  read("ncclGetUniqueId", api->GetUniqueId);
  read("ncclCommInitRankConfig", api->CommInitRankConfig);
  read("ncclCommFinalize", api->CommFinalize);
  read("ncclCommDestroy", api->CommDestroy);
  read("ncclCommAbort", api->CommAbort);
  read("ncclCommGetAsyncError", api->CommGetAsyncError);
  read("ncclGroupStart", api->GroupStart);
  read("ncclGroupEnd", api->GroupEnd);
  read("ncclSend", api->Send);
  read("ncclRecv", api->Recv);
  read("ncclAllReduce", api->AllReduce);
  read("ncclReduceScatter", api->ReduceScatter);
  read("ncclBroadcast", api->Broadcast);
  if (api->GetVersion != nullptr) (void)api->GetVersion(&api->version);  // 0 if it fails, which is too old
  if (api->version < kLeastVersion) {
    return FailedPrecondition(
        StrCat(place, ": version ", VersionText(api->version), ", wanted ", VersionText(kLeastVersion), " or later"));
  }
  if (!read.missing().empty()) return FailedPrecondition(StrCat(place, ": no function ", read.missing()));
  api->place = std::move(place);
  return std::shared_ptr<const Api>(std::move(api));
}

// Returns whether the loader's reason is that no file has the name. It gives only a text: the file that it looked for
// and errno's text. It gives no reason for a library that the process has not loaded (RTLD_NOLOAD).
bool IsNoFile(const std::string& file, std::string_view why) {
  return why.empty() || (why.starts_with(file + ": ") && why.ends_with(std::strerror(ENOENT)));
}

Result<std::shared_ptr<const Api>> Open(const std::string& file, int mode, const std::string& place,
                                        bool* is_installed) {
  void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | mode);
  const char* const error = library == nullptr ? ::dlerror() : nullptr;
  const std::string why = error == nullptr ? "" : error;
  if (library != nullptr || !IsNoFile(file, why)) *is_installed = true;
  if (library != nullptr) return ReadApi(library, place);
  return FailedPrecondition(StrCat(place, ": ", why.empty() ? "not loaded" : why));
}

}  // namespace

Result<std::shared_ptr<const Api>> Load(const NcclPlace& place, bool* is_installed) {
  struct Try {
    std::string file;
    int mode;
    std::string place;
  };
  std::vector<Try> tries;
  if (!place.file.empty()) {
    tries.push_back({place.file, 0, StrCat(place.file, " (LOCKSTEP_NCCL)")});
  } else {
    tries.push_back({kName, RTLD_NOLOAD, "the process's own"});
    if (!place.folder.empty()) tries.push_back({StrCat(place.folder, "/", kName), 0, StrCat(place.folder, "/", kName)});
    if (place.system) tries.push_back({kName, 0, "the system's"});
  }
  std::string reasons;
  bool is_found = false;
  if (is_installed == nullptr) is_installed = &is_found;
  *is_installed = false;
  for (const Try& a_try : tries) {
    auto api = Open(a_try.file, a_try.mode, a_try.place, is_installed);
    if (api.ok()) return api;
    reasons += StrCat(reasons.empty() ? "" : "; ", api.status().message());
  }
  return FailedPrecondition(StrCat("NCCL cannot be loaded: ", reasons,
                                   "; install nvidia-nccl-cu13, or set LOCKSTEP_NCCL to the path of ", kName));
}

bool Reduces(DType dtype) { return dtype != DType::kInt16 && dtype != DType::kUInt16 && dtype != DType::kBool; }

Type TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return Type::kFloat32;
    case DType::kFloat64: return Type::kFloat64;
    case DType::kFloat16: return Type::kFloat16;
    case DType::kBFloat16: return Type::kBFloat16;
    case DType::kInt8: return Type::kInt8;
    case DType::kInt32: return Type::kInt32;
    case DType::kInt64: return Type::kInt64;
    case DType::kUInt32: return Type::kUInt32;
    case DType::kUInt64: return Type::kUInt64;
    default: return Type::kUInt8;  // the others are moved only, as bytes
  }
}

Op OpOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return Op::kSum;
    case ReduceOp::kMean: return Op::kMean;
    case ReduceOp::kMin: return Op::kMin;
    case ReduceOp::kMax: return Op::kMax;
    case ReduceOp::kProduct: return Op::kProduct;
  }
  return Op::kSum;
}

}  // namespace lockstep::device::nccl
