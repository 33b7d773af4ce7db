#include "core/metrics/grouped_auc.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace lockstep {
namespace {

// A sample of a group; the samples are sorted by prediction.
struct Sample {
  double prediction;
  bool label;
};

// Adds the AUC of one group, walking up its predictions. At each value, every positive sample counts one win for each
// negative sample with a lower prediction, and half a win for each with the same one. N log N for N samples; sorts
// `group`.
void AddGroup(std::vector<Sample>& group, GroupedAuc& sum) {
  std::sort(group.begin(), group.end(),
            [](const Sample& left, const Sample& right) { return left.prediction < right.prediction; });
  double positives = 0, negatives = 0, won = 0;
  for (size_t begin = 0, end = 0; begin < group.size(); begin = end) {
    double tied_positives = 0, tied_negatives = 0;
    for (; end < group.size() && group[end].prediction == group[begin].prediction; ++end) {
      (group[end].label ? tied_positives : tied_negatives) += 1;
    }
    won += tied_positives * (negatives + tied_negatives / 2);
    positives += tied_positives;
    negatives += tied_negatives;
  }
  if (positives == 0 || negatives == 0) return;
  const double samples = positives + negatives;
  sum.weighted_auc += samples * won / (positives * negatives);
  sum.samples += samples;
}

}  // namespace

Result<GroupedAuc> ComputeGroupedAuc(const GroupedSamples& samples) {
  GroupedAuc sum;
  std::vector<Sample> group;
  for (int64_t i = 0; i < samples.count; ++i) {
    if (std::isnan(samples.predictions[i])) {
      return InvalidArgument("prediction of sample " + std::to_string(i) + " is NaN, wanted a number");
    }
    group.push_back({samples.predictions[i], samples.labels[i]});
    if (i + 1 == samples.count || samples.groups[i + 1] != samples.groups[i]) {
      AddGroup(group, sum);
      group.clear();
    }
  }
  return sum;
}

}  // namespace lockstep
