#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/hash.h"
#include "core/sharding/placement.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tf/bridge/convert.h"

// The placements of dynamic tables' keys (core/sharding/placement.h) as an attribute of routes: a number for each
// lookup of keys.
#define LOCKSTEP_KEY_OWNERS_ATTR "key_owners: list(int)"

namespace lockstep {

// Reads the placements of `count` lookups of keys. INVALID_ARGUMENT for another number of them, or numbers that are
// none.
inline absl::Status ReadKeyOwners(::tensorflow::OpKernelConstruction* construction, size_t count,
                                  std::vector<KeyPlacement>* placements) {
  std::vector<int64_t> owners;
  TF_RETURN_IF_ERROR(construction->GetAttr("key_owners", &owners));
  if (owners.size() != count) {
    return absl::InvalidArgumentError(absl::StrCat("'", construction->def().name(), "': got ", owners.size(),
                                                   " key_owners, wanted ", count, ", one for each lookup of keys"));
  }
  for (const int64_t owner : owners) {
    const Result<KeyPlacement> placement = KeyPlacement::OfNumber(owner);
    if (!placement.ok()) {
      return ToTensorFlow(placement.status().WithPrefix(absl::StrCat("'", construction->def().name(), "': ")));
    }
    placements->push_back(*placement);
  }
  return absl::OkStatus();
}

// Returns the end of an exchange's name for placements that `text` lists. Ranks that place tables differently then have
// different names, and get an error.
inline std::string PlacementSignature(const std::string& text) {
  return absl::StrCat(" placed ", absl::Hex(Fingerprint(text), absl::kZeroPad16));
}

}  // namespace lockstep
