#include "core/columnar/files/arrow_library.h"

#include <utility>

namespace lockstep::columnar {
namespace {

Loadable<ArrowLibrary>& TheLibrary() {
  static auto& library =
      *new Loadable<ArrowLibrary>({"Parquet and ORC input", "the library for Arrow", kArrowLibrarySymbol},
                                  &ArrowInterfaceId, [](const ArrowLibrary& loaded) { UseAllocator(loaded.allocate); });
  return library;
}

}  // namespace

void SetArrowPlace(LibraryPlace place) { TheLibrary().SetPlace(std::move(place)); }

Result<const ArrowLibrary*> LoadArrow() { return TheLibrary().Load(); }

Status UseArrow(const ArrowLibrary* library) { return TheLibrary().Use(library); }

}  // namespace lockstep::columnar
