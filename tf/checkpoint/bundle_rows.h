#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_slice.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"
#include "tf/bridge/convert.h"

namespace lockstep {

// The largest number of slices that a worker writes of a tensor: when it reads, TensorFlow compares all pairs of them.
inline constexpr int64_t kMostSlices = 256;

// Adds `rows`, [N, ...] with N > 0, to a file of a checkpoint: as rows [begin, begin + N) of a tensor of `total` rows.
inline Status AddRows(tensorflow::BundleWriter* file, const std::string& name, int64_t total, int64_t begin,
                      const tensorflow::Tensor& rows) {
  const int64_t count = rows.dim_size(0);
  if (count == total) return FromTensorFlow(file->Add(name, rows));
  tensorflow::TensorShape whole = rows.shape();
  whole.set_dim(0, total);
  tensorflow::TensorSlice slice(rows.dims());
  slice.set_start(0, begin);
  slice.set_length(0, count);
  return FromTensorFlow(file->AddSlice(name, whole, slice, rows));
}

// Returns RESOURCE_EXHAUSTED if TensorFlow had no memory for a tensor that is to be read; its data is then null.
inline Status CheckAllocated(const tensorflow::Tensor& tensor) {
  if (tensor.IsInitialized()) return OkStatus();
  return ResourceExhausted(absl::StrCat("no memory for a tensor ", tensorflow::DataTypeString(tensor.dtype()),
                                        tensor.shape().DebugString(), " of the checkpoint"));
}

// Returns the status of reading a checkpoint. A truncated file gives the code that training loops take for the end of
// their data; it becomes DATA_LOSS.
inline Status Damage(const Status& status) {
  return status.code() == StatusCode::kOutOfRange ? DataLoss(status.message()) : status;
}

}  // namespace lockstep
