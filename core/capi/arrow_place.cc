#include "core/capi/arrow_place.h"

#include "core/columnar/files/arrow_library.h"

void lockstep_set_arrow(const char* library, const char* const* needed, int count, const char* missing) {
  lockstep::columnar::SetArrowPlace({.library = library, .needed = {needed, needed + count}, .missing = missing});
}
