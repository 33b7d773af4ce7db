#pragma once

#include "core/columnar/files/arrow_library.h"

#pragma GCC visibility push(default)
extern "C" {

// The entry of the library for Arrow (files/arrow_library.h). Makes AllocateBuffer use Arrow's pool inside of this
// library as well, which has its own copy of it.
const lockstep::columnar::ArrowLibrary* lockstep_arrow_library();
}
#pragma GCC visibility pop
