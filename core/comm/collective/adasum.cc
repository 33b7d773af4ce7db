#include "core/comm/collective/adasum.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "core/base/float16.h"
#include "core/base/strings.h"
#include "core/comm/collective/adasum_plan.h"
#include "core/comm/collective/arrivals.h"

// Three steps, for R ranks:
//
//   1. AllToAllV    each rank gets its share of the list from every rank: R rows of N / R bytes
//   2. log2 R x     the rows are combined in pairs. The dot products need whole tensors, so their parts are gathered
//      AllGatherV   from all shares. Row 0 is left at the end
//   3. AllGatherV   every rank gets every share's row 0
//
// Steps 1 and 3 move the bytes of a ring's allreduce, and each element is computed by one rank. The paper halves the
// vectors and doubles the distance from round to round. This moves as many bytes between the same ranks, but in 2 log2
// R exchanges, and only for powers of two.
//
// The bits of a sum depend on its order, and the division of a list depends on all its tensors. A tensor's coefficients
// must not depend on that. So each tensor is cut into blocks from its own start, one rank adds up each block's
// products, and all ranks add up the blocks in their order. Therefore parts are gathered by block and not by share. At
// 24 bytes for each pair and block of 16 KiB, this moves hardly more.

namespace lockstep {
namespace {

using namespace adasum;  // NOLINT(google-build-using-namespace): the parts of this file

// Fewer bytes are cheaper to copy than to allocate in shared memory; the communicator copies them through its own
// memory.
constexpr int64_t kSharedFromBytes = 1 << 16;

// Always adds the same kLanes sums, and then these in their order. The vectors are explicit, because compilers may not
// reorder sums, and do not see these lanes in a loop over scalars.
template <typename T>
Products ProductsOf(const T* a, const T* b, int64_t count) {
  constexpr int kLanes = 4;
  using Loaded [[gnu::vector_size(kLanes * sizeof(T))]] = T;
  using Sums [[gnu::vector_size(kLanes * sizeof(double))]] = double;
  Sums aa = {}, bb = {}, ab = {};
  const auto add = [&](const T* from_a, const T* from_b) {
    Loaded loaded_a, loaded_b;
    std::memcpy(&loaded_a, from_a, sizeof(Loaded));
    std::memcpy(&loaded_b, from_b, sizeof(Loaded));
    const Sums x = __builtin_convertvector(loaded_a, Sums), y = __builtin_convertvector(loaded_b, Sums);
    aa += x * x;
    bb += y * y;
    ab += x * y;
  };
  int64_t done = 0;
  for (; done + kLanes <= count; done += kLanes) add(a + done, b + done);
  // The rest is filled up with zeros, which add nothing.
  T rest_a[kLanes] = {}, rest_b[kLanes] = {};
  std::copy(a + done, a + count, rest_a);
  std::copy(b + done, b + count, rest_b);
  add(rest_a, rest_b);
  Products products;
  for (int lane = 0; lane < kLanes; ++lane) {
    products.aa += aa[lane];
    products.bb += bb[lane];
    products.ab += ab[lane];
  }
  return products;
}

template <typename T>
void CombineInto(T* a, const T* b, const Products& products, int64_t count) {
  const double of_a = Factor(products.aa, products.ab), of_b = Factor(products.bb, products.ab);
  for (int64_t i = 0; i < count; ++i) a[i] = static_cast<T>(of_a * a[i] + of_b * b[i]);
}

// Makes one round: row 0 and row `stride` become row 0, rows 2 * stride and 3 * stride become row 2 * stride, and so
// on. values: [R, elements of this rank's share].
template <typename T>
Status CombineNeighbours(Communicator& communicator, const std::string& name, const Plan& plan, int stride, T* values) {
  const std::span<const Block> own = plan.BlocksOf(communicator.rank());
  const int64_t row_elements = plan.elements[communicator.rank()];
  const int pairs = NumPairs(communicator.size(), stride);
  const auto in_row = [&](int row, const Block& block) {
    return values + row * row_elements + block.begin - own[0].begin;
  };

  std::vector<Products> parts;  // [own blocks, pairs]
  for (const Block& block : own) {
    for (int pair = 0; pair < pairs; ++pair) {
      const int row = 2 * stride * pair;
      parts.push_back(ProductsOf(in_row(row, block), in_row(row + stride, block), block.count));
    }
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Products> products,
                            GatherProducts(communicator, name, plan, pairs, parts));
  for (const Block& block : own) {
    for (int pair = 0; pair < pairs; ++pair) {
      const int row = 2 * stride * pair;
      CombineInto(in_row(row, block), in_row(row + stride, block), products[block.tensor * pairs + pair], block.count);
    }
  }
  return OkStatus();
}

// Makes all rounds: row 0 of `values` is the result.
template <typename T>
Status CombineRows(Communicator& communicator, const std::string& name, const Plan& plan, void* values) {
  for (int stride = 1; stride < communicator.size(); stride *= 2) {
    LOCKSTEP_RETURN_IF_ERROR(CombineNeighbours(communicator, name, plan, stride, static_cast<T*>(values)));
  }
  return OkStatus();
}

// Does the same for a 16-bit type, in float.
template <typename ToFloat, typename FromFloat>
Status CombineHalfRows(Communicator& communicator, const std::string& name, const Plan& plan, const ToFloat& to_float,
                       const FromFloat& from_float, float* floats, void* values) {
  uint16_t* const halves = static_cast<uint16_t*>(values);
  const int64_t row_elements = plan.elements[communicator.rank()];
  const int64_t elements = row_elements * communicator.size();
  for (int64_t i = 0; i < elements; ++i) floats[i] = to_float(halves[i]);
  LOCKSTEP_RETURN_IF_ERROR(CombineRows<float>(communicator, name, plan, floats));
  for (int64_t i = 0; i < row_elements; ++i) halves[i] = from_float(floats[i]);
  return OkStatus();
}

// The one place that switches on the type. floats: as many as `values` has elements, for 16-bit types.
Status Combine(Communicator& communicator, const std::string& name, const Plan& plan, DType dtype, float* floats,
               void* values) {
  switch (dtype) {
    case DType::kFloat32: return CombineRows<float>(communicator, name, plan, values);
    case DType::kFloat64: return CombineRows<double>(communicator, name, plan, values);
    case DType::kFloat16:
      return CombineHalfRows(
          communicator, name, plan, [](uint16_t half) { return Float16ToFloat(half); },
          [](float value) { return FloatToFloat16(value); }, floats, values);
    case DType::kBFloat16:
      return CombineHalfRows(
          communicator, name, plan, [](uint16_t half) { return BFloat16ToFloat(half); },
          [](float value) { return FloatToBFloat16(value); }, floats, values);
    default: return OkStatus();  // CheckArguments refused the others.
  }
}

}  // namespace

// All received data first goes to shared memory, if there is some, because the peers read its row 0 in the last step.
// All memory is allocated before the first step: a rank that has none declines the whole call.
Status AdasumAllReduce(Communicator& communicator, std::string_view name, DType dtype,
                       std::span<const int64_t> counts_of_tensors, const void* in, void* out) {
  LOCKSTEP_RETURN_IF_ERROR(CheckArguments(name, dtype, counts_of_tensors, in, out));
  const std::string full_name = NameWithCounts(name, counts_of_tensors);
  const Plan plan = MakePlan(counts_of_tensors, communicator.size());
  const Item element = {dtype, 1};
  const int64_t share = plan.elements[communicator.rank()];
  const int64_t elements = communicator.size() * share, bytes = elements * element.bytes();
  const std::shared_ptr<SharedBuffer> shared = bytes < kSharedFromBytes ? nullptr : communicator.AllocateShared(bytes);
  const std::unique_ptr<char[]> owned(shared != nullptr ? nullptr : new (std::nothrow) char[bytes]);
  const std::unique_ptr<float[]> floats(element.bytes() != 2 ? nullptr : new (std::nothrow) float[elements]);
  if ((shared == nullptr && owned == nullptr) || (element.bytes() == 2 && floats == nullptr)) {
    return communicator.Decline(full_name, ResourceExhausted(StrCat("'", name, "': no memory for an adasum of ",
                                                                    elements, " elements on each rank")));
  }
  void* const rows = shared != nullptr ? shared->data() : owned.get();
  const std::vector<int64_t> own_share(communicator.size(), share);
  LOCKSTEP_RETURN_IF_ERROR(
      communicator.AllToAllV(full_name, element, plan.elements, in, Expecting(full_name, own_share, rows)));
  LOCKSTEP_RETURN_IF_ERROR(Combine(communicator, full_name, plan, dtype, floats.get(), rows));
  return communicator.AllGatherV(full_name, element, share, rows, Expecting(full_name, plan.elements, out));
}

}  // namespace lockstep
