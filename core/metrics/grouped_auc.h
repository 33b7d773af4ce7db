#pragma once

#include <cstdint>

#include "core/base/status.h"

namespace lockstep {

// The samples of a batch, in the order in which they came: three arrays of `count` elements, which the caller owns and
// keeps as long as a call lasts.
struct GroupedSamples {
  int64_t count = 0;
  const bool* labels = nullptr;         // the truth: positive or negative
  const double* predictions = nullptr;  // higher for what is more likely positive; any numbers but NaN
  const int64_t* groups = nullptr;      // what a sample belongs to, such as the id of a user
};

// What the groups of a batch add to a mean over groups. Sums of batches, and of ranks, are sums of these.
struct GroupedAuc {
  double weighted_auc = 0;  // sum over groups of samples * AUC
  double samples = 0;       // sum over groups of samples
};

// The areas under the ROC curves of groups, weighted by their numbers of samples: the "GAUC" of Zhou et al., "Deep
// Interest Network for Click-Through Rate Prediction", 2018. Thread-safe.
//
// A group is a run of samples with equal `groups`, the first and the last of the batch included. A group whose samples
// are all positive, or all negative, has no AUC and counts for nothing. The AUC of a group is exact: the share of its
// pairs of a positive and a negative sample in which the positive one has the higher prediction; a tie counts half.
//
// INVALID_ARGUMENT names the sample whose prediction is NaN.
Result<GroupedAuc> ComputeGroupedAuc(const GroupedSamples& samples);

}  // namespace lockstep
