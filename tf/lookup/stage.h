#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/comm/collective/communicator.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf/bridge/convert.h"

// The stages of a lookup (core/sharding/lookup.h) as an attribute of its ops. Python builds the stages one after
// another. The ops of the way back and of the gradients carry only the name, for Python's gradient functions.
#define LOCKSTEP_STAGE_ATTR "stage: {'only', 'host', 'owner'} = 'only'"

namespace lockstep {

enum class Stage : uint8_t {
  kOnly,   // from every rank to the owners
  kHost,   // to the relay ranks of the same host
  kOwner,  // from the relay ranks to the owners
};

inline absl::Status ReadStage(::tensorflow::OpKernelConstruction* construction, Stage* stage) {
  std::string name;
  TF_RETURN_IF_ERROR(construction->GetAttr("stage", &name));
  *stage = name == "host" ? Stage::kHost : name == "owner" ? Stage::kOwner : Stage::kOnly;
  return absl::OkStatus();
}

// Returns the relay rank of each owner, [R], in the stage kHost; empty in others: ids go to the owners.
// FAILED_PRECONDITION if the job has no relay ranks.
inline Result<std::span<const int>> RelayRanksOf(Stage stage, const Communicator& communicator) {
  if (stage != Stage::kHost) return std::span<const int>();
  if (communicator.relay_ranks().empty()) {
    return FailedPrecondition("a lookup in two stages needs a job of several hosts, one of them with several ranks");
  }
  return communicator.relay_ranks();
}

// Returns the counts of `ids`. INVALID_ARGUMENT for another shape, or a number out of range.
inline Result<const int64_t*> TimesOf(const ::tensorflow::Tensor& seen, const ::tensorflow::Tensor& ids,
                                      std::string_view table) {
  if (seen.shape() != ids.shape()) {
    return InvalidArgument(absl::StrCat("table '", table, "': got times of shape ", seen.shape().DebugString(),
                                        " for ids of shape ", ids.shape().DebugString()));
  }
  const auto* const times = static_cast<const int64_t*>(Data(seen));
  for (int64_t i = 0; i < seen.NumElements(); ++i) {
    if (times[i] < 0 || times[i] > UINT32_MAX) {
      return InvalidArgument(
          absl::StrCat("table '", table, "': a key was looked up ", times[i], " times, wanted [0, 2^32)"));
    }
  }
  return times;
}

}  // namespace lockstep
