#include "core/base/loadable.h"

#include <dlfcn.h>

namespace lockstep {
namespace {

Status LoadError(const LibraryNames& names, const std::string& file) {
  const char* const why = ::dlerror();
  return FailedPrecondition(
      StrCat(names.purpose, ": library ", file, " cannot be loaded: ", why == nullptr ? "no reason given" : why));
}

}  // namespace

Result<const void*> OpenTable(const LibraryPlace& place, const LibraryNames& names) {
  if (place.library.empty()) return FailedPrecondition(place.missing);
  for (const std::string& file : place.needed) {
    if (::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) return LoadError(names, file);
  }
  void* const library = ::dlopen(place.library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return LoadError(names, place.library);
  void* const symbol = ::dlsym(library, names.symbol);
  if (symbol == nullptr) return LoadError(names, place.library);
  return reinterpret_cast<const void* (*)()>(symbol)();
}

}  // namespace lockstep
