#pragma once

#include "core/base/loadable.h"
#include "core/base/status.h"
#include "core/device/library.h"

namespace lockstep::device {

// Says where LoadLibrary looks. Does nothing else; thread-safe.
void SetLibraryPlace(LibraryPlace place);

// Returns the library, which the first call loads; it stays loaded. It also loads on a machine without a
// GPU, where device_count is 0. FAILED_PRECONDITION if the library is missing, if it cannot be loaded, or if it comes
// from other sources; a later call tries again. Thread-safe.
Result<const Library*> LoadLibrary();

// Makes LoadLibrary return `library`, for programs that contain it, as tests do. FAILED_PRECONDITION if it comes from
// other sources. Thread-safe.
Status UseLibrary(const Library* library);

}  // namespace lockstep::device
