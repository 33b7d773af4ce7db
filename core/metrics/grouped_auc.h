#pragma once

#include <cstdint>

#include "core/base/status.h"

namespace lockstep {

// The samples of a batch, in their order: three arrays of `count` elements, which the caller owns and keeps during a
// call.
struct GroupedSamples {
  int64_t count = 0;
  const bool* labels = nullptr;         // the truth: positive or negative
  const double* predictions = nullptr;  // higher if more likely positive; any numbers but NaN
  const int64_t* groups = nullptr;      // the group of a sample, such as the id of a user
};

// The contribution of a batch's groups to a mean over groups. Contributions of batches and of ranks add up field by
// field.
struct GroupedAuc {
  double weighted_auc = 0;  // sum over groups of samples * AUC
  double samples = 0;       // sum over groups of samples
};

// Computes the areas under the ROC curves of groups, weighted by their numbers of samples: the "GAUC" of Zhou et al.,
// "Deep Interest Network for Click-Through Rate Prediction", 2018. Thread-safe.
//
// A group is a run of samples with equal `groups`; the first and the last run of the batch count too. A group whose
// samples are all positive, or all negative, has no AUC and is left out. The AUC of a group is exact: it is the share
// of pairs of a positive and a negative sample in which the positive one has the higher prediction. A tie counts half.
//
// INVALID_ARGUMENT names the sample whose prediction is NaN.
Result<GroupedAuc> ComputeGroupedAuc(const GroupedSamples& samples);

}  // namespace lockstep
