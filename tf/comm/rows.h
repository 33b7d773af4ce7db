#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/comm/collective/communicator.h"
#include "tensorflow/core/framework/tensor.h"

namespace lockstep {

// A tensor as rows; points into the input.
struct Rows {
  int64_t count;                // number of rows of this rank
  tensorflow::TensorShape row;  // shape of a row
  Item item;                    // a row, for the communicator
  const void* data;
  std::string name;  // name of the collective with the row's shape; equal on all ranks
};

// Returns a tensor as rows; INVALID_ARGUMENT for a scalar. `op` and `node` are for messages; `collective` is the name
// that is compared between ranks.
Result<Rows> AsRows(const tensorflow::Tensor& input, std::string_view op, const std::string& collective,
                    const std::string& node);

// Returns `counts`, in the host's memory, as one number of rows for each rank; INVALID_ARGUMENT unless they add up to
// `rows`. `what` is for messages.
Result<std::vector<int64_t>> RowCounts(const tensorflow::Tensor& counts, int ranks, int64_t rows,
                                       std::string_view what);

}  // namespace lockstep
