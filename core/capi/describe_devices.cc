#include "core/capi/describe_devices.h"

#include <memory>
#include <string>
#include <utility>

#include "core/base/json_text.h"
#include "core/base/strings.h"
#include "core/capi/device_place.h"
#include "core/device/library.h"
#include "core/device/load.h"

namespace lockstep {
namespace {

using device::Library;

std::string ErrorText(const Status& status) {
  std::string text = "{\"error\": ";
  text += JsonText(status.message());
  return text + '}';
}

Result<std::string> DescribeDevice(const Library& library, int device, int count) {
  device::Properties found = {};
  LOCKSTEP_RETURN_IF_ERROR(device::ToStatus(library, library.properties(device, &found), "properties of the device"));
  std::string peers;
  for (int peer = 0; peer < count; ++peer) {
    bool can = false;
    if (peer == device || library.can_access_peer(device, peer, &can) != device::kSuccess || !can) continue;
    peers += StrCat(peers.empty() ? "" : ", ", peer);
  }
  std::string text = "{\"name\": ";
  text += JsonText(found.name);
  return text + StrCat(", \"major\": ", found.major, ", \"minor\": ", found.minor,
                       ", \"multiprocessors\": ", found.multiprocessors, ", \"memory_bytes\": ", found.memory_bytes,
                       ", \"free_bytes\": ", found.free_bytes, ", \"peers\": [", peers, "]}");
}

Result<std::string> DescribeDevices(bool details) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Library* const library, device::LoadLibrary());
  int count = 0, driver = 0;
  const char* why = "";
  LOCKSTEP_RETURN_IF_ERROR(device::ToStatus(*library, library->device_count(&count, &why), "number of devices"));
  // A driver that does not answer is none.
  if (library->driver_version(&driver) != device::kSuccess) driver = 0;
  std::string text = "{\"runtime\": ";
  text += JsonText(library->runtime);
  text += StrCat(", \"driver\": ", driver, ", \"count\": ", count, ", \"why\": ");
  text += JsonText(why);
  text += ", \"devices\": [";
  for (int device = 0; details && device < count; ++device) {
    if (device > 0) text += ", ";
    auto described = DescribeDevice(*library, device, count);
    text += described.ok() ? *std::move(described) : ErrorText(described.status());
  }
  return text + "]}";
}

Result<std::string> DescribeNccl() {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::shared_ptr<const device::nccl::Api> api, device::nccl::Load(ProcessNcclPlace()));
  std::string text = StrCat("{\"version\": ", api->version, ", \"place\": ");
  text += JsonText(api->place);
  return text + '}';
}

// Keeps an answer alive after the return. It is thread-local, so that no call changes another thread's text.
const char* Keep(Result<std::string> described) {
  thread_local std::string text;
  text = described.ok() ? *std::move(described) : ErrorText(described.status());
  // The text outlives the call; the next call of this thread invalidates the pointer.
  return text.c_str();  // NOLINT(clang-analyzer-cplusplus.InnerPointer)
}

}  // namespace
}  // namespace lockstep

const char* lockstep_describe_devices(int details) { return lockstep::Keep(lockstep::DescribeDevices(details != 0)); }

const char* lockstep_describe_nccl() { return lockstep::Keep(lockstep::DescribeNccl()); }
