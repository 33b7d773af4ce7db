#include "core/embedding/eviction.h"

#include "core/base/strings.h"

namespace lockstep {
namespace {

template <typename T>
Status CheckNotNegative(const char* option, const std::optional<T>& value) {
  if (!value || *value >= 0) return OkStatus();
  return InvalidArgument(StrCat("eviction: ", option, " is ", *value, ", wanted 0 or more"));
}

}  // namespace

Status EvictionOptions::Validate() const {
  LOCKSTEP_RETURN_IF_ERROR(CheckNotNegative("steps_to_live", steps_to_live));
  LOCKSTEP_RETURN_IF_ERROR(CheckNotNegative("seconds_to_live", seconds_to_live));
  LOCKSTEP_RETURN_IF_ERROR(CheckNotNegative("l2_threshold", l2_threshold));
  LOCKSTEP_RETURN_IF_ERROR(CheckNotNegative("max_keys", max_keys));
  LOCKSTEP_RETURN_IF_ERROR(CheckNotNegative("max_bytes", max_bytes));
  if (keys_per_call < 1)
    return InvalidArgument(StrCat("eviction: ", keys_per_call, " keys per call, wanted 1 or more"));
  return OkStatus();
}

Status EvictionSweep::Validate() const {
  if ((width == 0 && !begins()) || went < 0) {
    return InvalidArgument(StrCat("eviction continues at hash ", next, " by ", width, " with ", went,
                                  " keys evicted, wanted a range and 0 keys or more"));
  }
  return OkStatus();
}

}  // namespace lockstep
