#include "core/device/library.h"

#include "core/base/strings.h"

namespace lockstep::device {

Status ToStatus(const Library& library, Error error, const char* what) {
  if (error == kSuccess) return OkStatus();
  std::string message = StrCat(what, ": ", library.error_text(error), " (error ", error, " of ", library.runtime, ")");
  return error == kOutOfMemory ? ResourceExhausted(std::move(message)) : Internal(std::move(message));
}

}  // namespace lockstep::device
