#include "core/comm/named/named_plan.h"

#include "core/base/strings.h"

namespace lockstep {

std::string NameOf(const NamedBatch& batch) {
  const std::string& first = batch.entries.front().request.name;
  return batch.entries.size() == 1 ? first : StrCat(first, " and ", batch.entries.size() - 1, " more");
}

ReduceOp OpOf(const NamedRequest& request) {
  switch (request.reduction) {
    case NamedReduction::kMean: return IsFloatingPoint(request.dtype) ? ReduceOp::kMean : ReduceOp::kSum;
    case NamedReduction::kMin: return ReduceOp::kMin;
    case NamedReduction::kMax: return ReduceOp::kMax;
    case NamedReduction::kProduct: return ReduceOp::kProduct;
    case NamedReduction::kSum:
    case NamedReduction::kAdasum: break;
  }
  return ReduceOp::kSum;
}

DType ComputedIn(const NamedRequest& request) {
  if (request.reduction != NamedReduction::kMean) return request.dtype;
  switch (request.dtype) {
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kInt16:
    case DType::kUInt16: return DType::kInt32;
    case DType::kInt32:
    case DType::kUInt32: return DType::kInt64;
    default: return request.dtype;
  }
}

}  // namespace lockstep
