#include "core/device/load.h"

#include <utility>

namespace lockstep::device {
namespace {

Loadable<Library>& TheLibrary() {
  static auto& library = *new Loadable<Library>({"GPUs", "the library for GPUs", kLibrarySymbol}, &InterfaceId);
  return library;
}

}  // namespace

void SetLibraryPlace(LibraryPlace place) { TheLibrary().SetPlace(std::move(place)); }

Result<const Library*> LoadLibrary() { return TheLibrary().Load(); }

Status UseLibrary(const Library* library) { return TheLibrary().Use(library); }

}  // namespace lockstep::device
