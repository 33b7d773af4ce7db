// Programs that contain the library for Arrow, such as tests, link this file. They need not load it.
#include "core/columnar/arrow/library.h"

namespace lockstep::columnar {
namespace {

[[maybe_unused]] const bool used = UseArrow(lockstep_arrow_library()).ok();

}  // namespace
}  // namespace lockstep::columnar
