#include "core/comm/collective/adasum.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <vector>

#include "core/base/float16.h"
#include "core/base/strings.h"

// Three steps, for R ranks:
//
//   1. AllToAllV    each rank gets one share of the list, as it is on every rank: R rows of N / R bytes
//   2. log2 R x     the rows are combined in pairs; the dot products, which need the whole of a tensor, come from an
//      AllGatherV   AllGatherV of every share's part of them. Row 0 is left at the end
//   3. AllGatherV   every rank gets every share's row 0
//
// The bytes of 1 and 3 are those of a ring's allreduce, and each element is computed by one rank. Halving the vectors
// and doubling the distance from round to round, as the paper does, moves as many bytes between the same ranks, but in
// 2 log2 R exchanges of them, and knows only powers of two.
//
// The bits of a sum depend on its order, and how a list is dealt out depends on all that is in it. So that a tensor's
// coefficients do not, it is cut into blocks that begin with it, each block's products are added up by one rank, and
// all ranks add up the blocks in their order. That is why the gathered parts are those of blocks and not of shares; at
// 24 bytes for each pair and block of 16 KiB they are hardly more to move.

namespace lockstep {
namespace {

// Large enough to make the products' bytes few, small enough to be dealt out evenly and to stay in the first-level
// cache while a pair of them is read.
constexpr int64_t kBlockElements = 4096;

// Less is cheaper to copy than to allocate in shared memory; the communicator copies it through memory of its own.
constexpr int64_t kSharedFromBytes = 1 << 16;

// Elements of one tensor, which one rank computes together.
struct Block {
  int64_t tensor;
  int64_t begin;  // in the list
  int64_t count;
};

// How a list is dealt out: the same on all ranks.
struct Plan {
  int64_t num_tensors = 0;
  std::vector<Block> blocks;      // of the list, in its order
  std::vector<int64_t> first;     // [R + 1]: rank r has the blocks from first[r] up to first[r + 1]
  std::vector<int64_t> elements;  // [R]: how many are in them

  std::span<const Block> BlocksOf(int rank) const {
    return std::span(blocks).subspan(first[rank], first[rank + 1] - first[rank]);
  }
};

// A rank's share begins with the first block that begins in its R-th of the elements.
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

// What the coefficients of a pair are made of: the squared norms and the dot product. Gathered as three doubles.
struct Products {
  double aa = 0;
  double bb = 0;
  double ab = 0;
};
static_assert(sizeof(Products) == 3 * sizeof(double));

// Always added up in the same kLanes sums, and these in their order. As vectors by name: compilers may not reorder
// sums, and do not see these lanes in a loop over scalars.
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
  // The rest with zeros behind it, which add nothing.
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

// What a tensor is multiplied with, from its squared norm and the dot product. A square that is too small to be a
// normal number has lost its precision, and quotients by it might be infinite. NaN is not less and stays NaN.
double Factor(double square, double dot) {
  return square < std::numeric_limits<double>::min() ? 1.0 : 1.0 - 0.5 * dot / square;
}

template <typename T>
void CombineInto(T* a, const T* b, const Products& products, int64_t count) {
  const double of_a = Factor(products.aa, products.ab), of_b = Factor(products.bb, products.ab);
  for (int64_t i = 0; i < count; ++i) a[i] = static_cast<T>(of_a * a[i] + of_b * b[i]);
}

// What is received goes to `out`, whose size all ranks know.
Allocate Into(void* out) {
  return [out](std::span<const int64_t>) -> Result<void*> { return out; };
}

// One round: row 0 and row `stride` become row 0, rows 2 * stride and 3 * stride the former, and so on. values: [R,
// elements of this rank's share].
template <typename T>
Status CombineNeighbours(Communicator& communicator, const std::string& name, const Plan& plan, int stride, T* values) {
  const std::span<const Block> own = plan.BlocksOf(communicator.rank());
  const int64_t row_elements = plan.elements[communicator.rank()];
  const int pairs = (communicator.size() - 1 - stride) / (2 * stride) + 1;
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
  std::vector<Products> all_parts(plan.blocks.size() * pairs);  // [blocks, pairs]: shares lie in the list's order
  LOCKSTEP_RETURN_IF_ERROR(communicator.AllGatherV(name, {DType::kFloat64, 3}, static_cast<int64_t>(parts.size()),
                                                   parts.data(), Into(all_parts.data())));
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
  for (const Block& block : own) {
    for (int pair = 0; pair < pairs; ++pair) {
      const int row = 2 * stride * pair;
      CombineInto(in_row(row, block), in_row(row + stride, block), products[block.tensor * pairs + pair], block.count);
    }
  }
  return OkStatus();
}

// All rounds: row 0 of `values` is the result.
template <typename T>
Status CombineRows(Communicator& communicator, const std::string& name, const Plan& plan, void* values) {
  for (int stride = 1; stride < communicator.size(); stride *= 2) {
    LOCKSTEP_RETURN_IF_ERROR(CombineNeighbours(communicator, name, plan, stride, static_cast<T*>(values)));
  }
  return OkStatus();
}

// The same for a 16-bit type, in float.
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

// The one place where the type is told apart. floats: as many as `values` has elements, for 16-bit types.
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

Status CheckArguments(std::string_view name, DType dtype, std::span<const int64_t> counts, const void* in,
                      const void* out) {
  if (!IsFloatingPoint(dtype)) {
    return InvalidArgument(StrCat("adasum '", name, "' of ", DTypeName(dtype), "; it is for floating-point types"));
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

// "gradients (adasum of 10 4096)". Not by StrCat, as it is made in each step and a list may be long.
std::string NameWithCounts(std::string_view name, std::span<const int64_t> counts) {
  std::string text(name);
  text += " (adasum of";
  for (const int64_t count : counts) text.append(" ").append(std::to_string(count));
  return text + ")";
}

}  // namespace

// All that is received first lies in shared memory, where there is some, because its row 0 is what the peers read in
// the last step. All memory is there before the first step: a rank that has none declines the whole.
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
  LOCKSTEP_RETURN_IF_ERROR(communicator.AllToAllV(full_name, element, plan.elements, in, Into(rows)));
  LOCKSTEP_RETURN_IF_ERROR(Combine(communicator, full_name, plan, dtype, floats.get(), rows));
  return communicator.AllGatherV(full_name, element, share, rows, Into(out));
}

}  // namespace lockstep
