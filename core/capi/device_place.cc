#include "core/capi/device_place.h"

#include <utility>

#include "core/base/mutex.h"
#include "core/device/load.h"

namespace lockstep {
namespace {

class Place {
 public:
  device::NcclPlace Get() {
    const MutexLock lock(mutex_);
    return place_;
  }
  void Set(device::NcclPlace place) {
    const MutexLock lock(mutex_);
    place_ = std::move(place);
  }

 private:
  Mutex mutex_;
  device::NcclPlace place_ LOCKSTEP_GUARDED_BY(mutex_);
};

Place& ThePlace() {
  static auto& place = *new Place();
  return place;
}

}  // namespace

device::NcclPlace ProcessNcclPlace() { return ThePlace().Get(); }

}  // namespace lockstep

void lockstep_set_device_library(const char* library, const char* missing) {
  lockstep::device::SetLibraryPlace({.library = library, .missing = missing});
}

void lockstep_set_nccl(const char* file, const char* folder) {
  lockstep::ThePlace().Set({.file = file, .folder = folder});
}
