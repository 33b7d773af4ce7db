#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/comm/collective/communicator.h"

// The parts of Adasum (adasum.h) that do not depend on the place of the tensors: the division of a list between ranks,
// and the coefficients. Tensors of the host and of devices (core/device/comm) share them.
namespace lockstep::adasum {

// Large enough that the products have few bytes, and small enough to be divided evenly and to stay in the first-level
// cache while a pair of blocks is read.
inline constexpr int64_t kBlockElements = 4096;

// Elements of one tensor that one rank computes together.
struct Block {
  int64_t tensor;
  int64_t begin;  // in the list
  int64_t count;
};

// The division of a list, equal on all ranks.
struct Plan {
  int64_t num_tensors = 0;
  std::vector<Block> blocks;      // the list's blocks, in its order
  std::vector<int64_t> first;     // [R + 1]: rank r has the blocks from first[r] up to first[r + 1]
  std::vector<int64_t> elements;  // [R]: the number of their elements

  std::span<const Block> BlocksOf(int rank) const {
    return std::span(blocks).subspan(first[rank], first[rank + 1] - first[rank]);
  }
};

// Returns the plan. A rank's share begins with the first block that begins in the rank's part (1/R) of the elements.
Plan MakePlan(std::span<const int64_t> counts, int size);

// The numbers behind a pair's coefficients: the squared norms and the dot product. Gathered as three doubles.
struct Products {
  double aa = 0;
  double bb = 0;
  double ab = 0;
};
static_assert(sizeof(Products) == 3 * sizeof(double));

// Returns a tensor's coefficient from its squared norm and the dot product. A square below the smallest normal number
// has lost its precision, and quotients by it might be infinite. NaN is not less, and stays NaN.
double Factor(double square, double dot);

// Returns the number of pairs in the round in which rows `stride` apart are combined.
inline int NumPairs(int size, int stride) { return (size - 1 - stride) / (2 * stride) + 1; }

// Gathers the products of all blocks, and adds up the products of each tensor in the order of its blocks. parts: [own
// blocks, pairs]. Returns [tensors, pairs], equal on all ranks. A collective.
Result<std::vector<Products>> GatherProducts(Communicator& communicator, std::string_view name, const Plan& plan,
                                             int pairs, std::span<const Products> parts);

// Returns INVALID_ARGUMENT for a type without fractions, a negative count, or a null pointer to elements.
Status CheckArguments(std::string_view name, DType dtype, std::span<const int64_t> counts, const void* in,
                      const void* out);

// Returns "gradients (adasum of 10 4096)". It avoids StrCat, because it runs in each step and a list may be long.
std::string NameWithCounts(std::string_view name, std::span<const int64_t> counts);

}  // namespace lockstep::adasum
