#include "core/columnar/files/arrow_library.h"

#include <utility>

namespace lockstep::columnar {
namespace {

Loadable<ArrowLibrary>& TheLibrary() {
  static auto& library = *new Loadable<ArrowLibrary>(
      {"Parquet and ORC input", "the library for Arrow", kArrowLibrarySymbol}, &ArrowInterfaceId);
  return library;
}

}  // namespace

void SetArrowPlace(LibraryPlace place) { TheLibrary().SetPlace(std::move(place)); }

Result<const ArrowLibrary*> LoadArrow() {
  if (const ArrowLibrary* const library = TheLibrary().loaded()) return library;
  LOCKSTEP_ASSIGN_OR_RETURN(const ArrowLibrary* const library, TheLibrary().Load());
  UseAllocator(library->allocate);
  return library;
}

Status UseArrow(const ArrowLibrary* library) {
  LOCKSTEP_RETURN_IF_ERROR(TheLibrary().Use(library));
  UseAllocator(library->allocate);
  return OkStatus();
}

}  // namespace lockstep::columnar
