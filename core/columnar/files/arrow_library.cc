#include "core/columnar/files/arrow_library.h"

#include <dlfcn.h>

#include <atomic>
#include <utility>

#include "core/base/mutex.h"
#include "core/base/strings.h"

namespace lockstep::columnar {
namespace {

Mutex mutex;  // also makes loading happen once
ArrowPlace& Place() LOCKSTEP_REQUIRES(mutex) {
  static auto& place = *new ArrowPlace();
  return place;
}
std::atomic<const ArrowLibrary*> loaded{nullptr};

Status LoadError(const std::string& file) {
  const char* const why = ::dlerror();
  return FailedPrecondition(
      StrCat("Parquet and ORC input: library ", file, " cannot be loaded: ", why == nullptr ? "no reason given" : why));
}

// Libraries stay open until the process ends: their buffers may live as long.
Result<const ArrowLibrary*> Open(const ArrowPlace& place) {
  if (place.library.empty()) return FailedPrecondition(place.missing);
  for (const std::string& file : place.needed) {
    if (::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) return LoadError(file);
  }
  void* const library = ::dlopen(place.library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return LoadError(place.library);
  void* const symbol = ::dlsym(library, kArrowLibrarySymbol);
  if (symbol == nullptr) return LoadError(place.library);
  return reinterpret_cast<const ArrowLibrary* (*)()>(symbol)();
}

}  // namespace

void SetArrowPlace(ArrowPlace place) {
  const MutexLock lock(mutex);
  Place() = std::move(place);
}

Result<const ArrowLibrary*> LoadArrow() {
  if (const ArrowLibrary* const library = loaded.load()) return library;
  const MutexLock lock(mutex);
  if (loaded.load() == nullptr) {
    LOCKSTEP_ASSIGN_OR_RETURN(const ArrowLibrary* const library, Open(Place()));
    LOCKSTEP_RETURN_IF_ERROR(UseArrow(library).WithPrefix(Place().library + ": "));
  }
  return loaded.load();
}

Status UseArrow(const ArrowLibrary* library) {
  if (std::string_view(library->interface_id) != ArrowInterfaceId()) {
    return FailedPrecondition(StrCat("the library for Arrow was built from other sources (interface ",
                                     library->interface_id, ", wanted ", ArrowInterfaceId(),
                                     "): install lockstep-tf again"));
  }
  UseAllocator(library->allocate);
  loaded.store(library);
  return OkStatus();
}

}  // namespace lockstep::columnar
