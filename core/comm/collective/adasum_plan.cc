#include "core/comm/collective/adasum_plan.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/base/strings.h"
#include "core/comm/collective/arrivals.h"

namespace lockstep::adasum {

Plan MakePlan(std::span<const int64_t> counts, int size) {
  Plan plan;
  int64_t total = 0;
  for (const int64_t count : counts) {
    for (int64_t at = 0; at < count; at += kBlockElements) {
      plan.blocks.push_back({plan.num_tensors, total + at, std::min(kBlockElements, count - at)});
    }
    total += count;
    ++plan.num_tensors;
  }
  const auto begins_before = [](const Block& block, int64_t element) { return block.begin < element; };
  for (int rank = 0; rank <= size; ++rank) {
    const auto block = std::lower_bound(plan.blocks.begin(), plan.blocks.end(), total * rank / size, begins_before);
    plan.first.push_back(block - plan.blocks.begin());
  }
  for (int rank = 0; rank < size; ++rank) {
    int64_t elements = 0;
    for (const Block& block : plan.BlocksOf(rank)) elements += block.count;
    plan.elements.push_back(elements);
  }
  return plan;
}

double Factor(double square, double dot) {
  return square < std::numeric_limits<double>::min() ? 1.0 : 1.0 - 0.5 * dot / square;
}

Result<std::vector<Products>> GatherProducts(Communicator& communicator, std::string_view name, const Plan& plan,
                                             int pairs, std::span<const Products> parts) {
  std::vector<Products> all_parts(plan.blocks.size() * pairs);  // [blocks, pairs]: shares lie in the list's order
  std::vector<int64_t> counts;
  for (int r = 0; r < communicator.size(); ++r) {
    counts.push_back(static_cast<int64_t>(plan.BlocksOf(r).size()) * pairs);
  }
  LOCKSTEP_RETURN_IF_ERROR(communicator.AllGatherV(name, {DType::kFloat64, 3}, static_cast<int64_t>(parts.size()),
                                                   parts.data(), Expecting(name, counts, all_parts.data())));
  std::vector<Products> products(plan.num_tensors * pairs);  // [tensors, pairs]
  for (size_t b = 0; b < plan.blocks.size(); ++b) {
    for (int pair = 0; pair < pairs; ++pair) {
      Products& sum = products[plan.blocks[b].tensor * pairs + pair];
      const Products& part = all_parts[b * pairs + pair];
      sum.aa += part.aa;
      sum.bb += part.bb;
      sum.ab += part.ab;
    }
  }
  return products;
}

Status CheckArguments(std::string_view name, DType dtype, std::span<const int64_t> counts, const void* in,
                      const void* out) {
  if (!IsFloatingPoint(dtype)) {
    return InvalidArgument(StrCat("adasum '", name, "' of ", DTypeName(dtype), ", wanted a floating-point type"));
  }
  const auto negative = std::find_if(counts.begin(), counts.end(), [](int64_t count) { return count < 0; });
  if (negative != counts.end()) {
    return InvalidArgument(
        StrCat("adasum '", name, "': tensor ", negative - counts.begin(), " has ", *negative, " elements"));
  }
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  if (total > 0 && (in == nullptr || out == nullptr)) {
    return InvalidArgument(StrCat("adasum '", name, "': ", total, " elements from ", in, " to ", out));
  }
  return OkStatus();
}

std::string NameWithCounts(std::string_view name, std::span<const int64_t> counts) {
  std::string text(name);
  text += " (adasum of";
  for (const int64_t count : counts) text.append(" ").append(std::to_string(count));
  return text + ")";
}

}  // namespace lockstep::adasum
