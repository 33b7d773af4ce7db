#include "core/device/load.h"

#include <dlfcn.h>

#include <atomic>
#include <string_view>
#include <utility>

#include "core/base/mutex.h"
#include "core/base/strings.h"

namespace lockstep::device {
namespace {

Mutex mutex;  // also makes loading happen once
LibraryPlace& Place() LOCKSTEP_REQUIRES(mutex) {
  static auto& place = *new LibraryPlace();
  return place;
}
std::atomic<const Library*> loaded{nullptr};

// The library stays open until the process ends, as the memory and streams that it made.
Result<const Library*> Open(const LibraryPlace& place) {
  if (place.library.empty()) return FailedPrecondition(place.missing);
  void* const library = ::dlopen(place.library.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* const symbol = library == nullptr ? nullptr : ::dlsym(library, kLibrarySymbol);
  if (symbol == nullptr) {
    const char* const why = ::dlerror();
    return FailedPrecondition(StrCat("the library for GPUs, ", place.library,
                                     ", cannot be loaded: ", why == nullptr ? "no reason given" : why));
  }
  return reinterpret_cast<const Library* (*)()>(symbol)();
}

}  // namespace

void SetLibraryPlace(LibraryPlace place) {
  const MutexLock lock(mutex);
  Place() = std::move(place);
}

Result<const Library*> LoadLibrary() {
  if (const Library* const library = loaded.load()) return library;
  const MutexLock lock(mutex);
  if (loaded.load() == nullptr) {
    LOCKSTEP_ASSIGN_OR_RETURN(const Library* const library, Open(Place()));
    LOCKSTEP_RETURN_IF_ERROR(UseLibrary(library).WithPrefix(Place().library + ": "));
  }
  return loaded.load();
}

Status UseLibrary(const Library* library) {
  if (std::string_view(library->interface_id) != InterfaceId()) {
    return FailedPrecondition(StrCat("the library for GPUs was built from other sources (interface ",
                                     library->interface_id, ", wanted ", InterfaceId(),
                                     "): build both from one checkout, or install lockstep-tf again"));
  }
  loaded.store(library);
  return OkStatus();
}

}  // namespace lockstep::device
