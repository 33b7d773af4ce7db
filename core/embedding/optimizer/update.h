#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>

#include "core/base/dtype.h"
#include "core/base/instruction_set.h"
#include "core/base/parallel.h"
#include "core/base/row_view.h"
#include "core/base/status.h"

// Fused sparse updates: the gradients of rows, duplicates included, are summed and the optimizer is applied, in one
// pass over the touched rows.
//
//   rule        an optimizer with this step's hyperparameters, as a function: AdagradOptions{...}.Rule(dtype)
//   target      rows and slots in memory, of a dynamic table or of ordinary contiguous variables
//   gradients   [N, D] float32, one for each of N positions; numbers [N] are the rows of the positions
//
// A slot of an optimizer is D float32 beside each row of weights. Its name and its initial value are the caller's.
//
// Letters: N positions, U <= N distinct rows among them, D dimension of a row.
//
// Results equal the results of TensorFlow's kernels (ResourceSparseApply...) up to the rounding of a float. The
// gradients of one row are summed in float32 in the order of the positions, in blocks (core/base/block_totals.h); the
// rule is applied once to the sum. For given inputs the result has the same bits, regardless of threads, instruction
// set and machine.
//
// Rows may be 16-bit. They are computed in float32 and rounded stochastically: up or down with the probability that
// gives the right expected value. Otherwise small updates would never change a weight. The random bits are a function
// of (rounding seed, key of the row, element): the same in every run. Slots are always float32.
namespace lockstep {

inline constexpr int kMaxSlots = 3;
inline constexpr int kMaxParameters = 8;

// A run of distinct rows for a kernel.
struct RowUpdates {
  RowView rows;                          // [D] of the rule's row type
  std::array<RowView, kMaxSlots> slots;  // [D] float32 each, as many as the rule has
  int64_t dim;                           // D
  const uint32_t* numbers;               // [count], distinct
  const float* const* gradients;         // [count], each [D]
  int64_t count;
  const RowView* keys;  // the int64 keys of rows, for rounding; null: a row's number is its key
  uint64_t rounding;
};

using UpdateFunction = void (*)(const RowUpdates& updates, const float* parameters);

// An optimizer with the hyperparameters of one step, for one row type and instruction set. A value.
struct UpdateRule {
  UpdateFunction function = nullptr;
  int num_slots = 0;
  DType row_type = DType::kFloat32;
  std::array<float, kMaxParameters> parameters = {};
};

// The rows and slots to which a rule is applied.
struct UpdateTarget {
  RowView rows;
  std::array<RowView, kMaxSlots> slots;
  int64_t dim;
  // For 16-bit rows: the int64 keys of the rows; null if a row's number is its key. `rounding` differs in every step
  // (it is made of the seed and the step).
  const RowView* keys = nullptr;
  uint64_t rounding = 0;
};

// Called from several threads with the distinct rows before they are changed, once for each row.
using BeforeUpdate = std::function<void(std::span<const uint32_t> numbers)>;
// A position with this number has no row: its gradient is dropped.
inline constexpr uint32_t kNoRow = 0xFFFFFFFF;

// Sums the gradients of each row and applies the rule once. numbers: [N], < 2^32 - 1, duplicates allowed, or kNoRow.
// gradients: [N, D]. No other code may read or write these rows meanwhile. While it runs, it takes about 16 bytes per
// position, and D floats for every row with duplicates.
void ApplyUpdate(const UpdateTarget& target, const UpdateRule& rule, std::span<const uint32_t> numbers,
                 const float* gradients, const ParallelFor& parallel, const BeforeUpdate& before = nullptr);

// One table's part in ApplyUpdates.
struct TableUpdate {
  UpdateTarget target;
  UpdateRule rule;
  std::span<const uint32_t> numbers;  // [N], as ApplyUpdate takes them
  const float* gradients;             // [N, D]
  // Rows [0, all_rows) take part as well, those without a gradient with a zero gradient (ApplyZeroGradients). Most
  // optimizers have no such rows.
  int64_t all_rows = 0;
};

// Does ApplyUpdate for several tables that share no memory, in as many parallel passes as for one table. So small
// tables cost no more than their rows. If there is little work in all, it stays on the calling thread.
void ApplyUpdates(std::span<const TableUpdate> tables, const ParallelFor& parallel);

// Does ApplyUpdate for numbers that are known to be distinct, without searching for duplicates.
void ApplyDistinctUpdate(const UpdateTarget& target, const UpdateRule& rule, std::span<const uint32_t> numbers,
                         const float* gradients, const ParallelFor& parallel, const BeforeUpdate& before = nullptr);

// Applies the rule with a gradient of zero to all rows [0, end) that `skip` does not hold. Optimizers that move every
// row in every step need that (adam.h). `skip` has `end` entries of 0 or 1; it is 1 for rows that do not exist. Reads
// and writes the whole table.
void ApplyZeroGradients(const UpdateTarget& target, const UpdateRule& rule, int64_t end, std::span<const uint8_t> skip,
                        const ParallelFor& parallel, const BeforeUpdate& before = nullptr);

}  // namespace lockstep
