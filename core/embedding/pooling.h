#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "core/base/dtype.h"
#include "core/base/instruction_set.h"
#include "core/base/parallel.h"
#include "core/base/status.h"

// Pooled lookups: the rows of each example's ids are combined into one row. Rows are given once for each distinct id:
// ```
// ids     7 4 | | 7 7 9        B = 3 examples, N = 5 ids; splits 0 2 2 5
// rows    4 7 9                U = 3 distinct ids, [U, D]
// places  1 0 | | 1 1 2        the row of each id
// pooled  rows[1] + rows[0] | 0 | 2 rows[1] + rows[2]          [B, D]
// ```
// PoolRows combines rows; PoolGradients goes back, from gradients of examples straight to sums per distinct row. In
// between there are no [N, D] values, which TensorFlow's gather and segment operations write and read again.
//
// With weights w, an example's row is the sum of w r over its ids, divided by the combiner's denominator.
// ```
// combiner   denominator       without weights
// sum        1                 1
// mean       sum of w          number of ids
// sqrtn      sqrt(sum of w w)  sqrt(number of ids)
// ```
// A row of zeros is the result for a denominator of 0, and for an example without ids. The definitions follow
// tf.nn.embedding_lookup_sparse. 16-bit rows are added in float32 and rounded once.
//
// Rows of an example are added in the order of the ids, one after another; gradients of a row in the same order, in
// blocks (core/base/block_totals.h). So results have the same bits, regardless of threads and instruction set. They
// differ from TensorFlow's only by the order of additions.
//
// All functions take several lookups and divide the work of all among the threads. They only touch their arguments,
// which have to pass CheckPooling before. Thread-safe.
namespace lockstep {

enum class Combiner : uint8_t { kSum, kMean, kSqrtN };

// Returns the combiner of a name ("sum", "mean" or "sqrtn"); nothing for another name.
std::optional<Combiner> FindCombiner(std::string_view name);

// The ids of one lookup. The memory is the caller's.
struct Pooling {
  Combiner combiner = Combiner::kSum;
  DType dtype = DType::kFloat32;         // of rows and gradients: float32, float64, float16 or bfloat16
  int64_t dim = 0;                       // D
  int64_t rows = 0;                      // U
  std::span<const int64_t> splits;       // [B + 1]: where the ids of each example begin; the last is N
  std::span<const int32_t> places = {};  // [N]: the row of each id, in [0, U)
  // [N], float64 for float64 rows, else float32; nothing: all are 1. The address of no weights may be null.
  std::optional<const void*> weights;

  int64_t examples() const { return static_cast<int64_t>(splits.size()) - 1; }
  int64_t ids() const { return static_cast<int64_t>(places.size()); }
};

// Returns INVALID_ARGUMENT for splits that are not 0 <= ... <= `ids`, the number of ids.
Status CheckSplits(std::span<const int64_t> splits, int64_t ids);

// Returns INVALID_ARGUMENT for another dtype, for splits that fail CheckSplits, and for a place without a row.
Status CheckPooling(const Pooling& lookup);

// Writes where the ids of each example begin, [B + 1], from the example of each id: example_of[i * stride] for id i of
// `ids`. B is the size of `splits` less one. INVALID_ARGUMENT if an example is not in [0, B), or comes after a later
// one.
Status SplitsOf(const int64_t* example_of, int64_t stride, int64_t ids, std::span<int64_t> splits);

struct PoolRowsTask {
  Pooling lookup;
  const void* rows;  // [U, D]
  void* pooled;      // [B, D], written
};
void PoolRows(std::span<const PoolRowsTask> tasks, const ParallelFor& parallel,
              InstructionSet set = BestInstructionSet());

struct PoolGradientsTask {
  Pooling lookup;
  const void* gradient;  // [B, D], of the pooled rows
  void* row_gradients;   // [U, D], written: the sum for each distinct row
};
void PoolGradients(std::span<const PoolGradientsTask> tasks, const ParallelFor& parallel,
                   InstructionSet set = BestInstructionSet());

}  // namespace lockstep
