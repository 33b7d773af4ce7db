#pragma once

#include "core/device/library.h"

// The functions of the table (library.h) that have kernels, and what they share with the others.
namespace lockstep::device {

Error Copy(Stream stream, void* to, const void* from, int64_t bytes);

Error CopyPieces(Stream stream, const Piece* pieces, int64_t count);
Error Reduce(Stream stream, ReduceOp op, DType dtype, int num_sources, int64_t count, const void* first,
             int64_t stride_bytes, void* out);
Error Scale(Stream stream, DType dtype, double factor, int64_t count, const void* in, void* out);
Error Divide(Stream stream, DType dtype, int64_t divisor, int64_t count, const void* in, void* out);
Error Convert(Stream stream, DType from, const void* in, int64_t count, DType to, void* out);
Error FillNeutral(Stream stream, ReduceOp op, DType dtype, int64_t count, void* out);
Error DotProducts(Stream stream, DType dtype, int num_tensors, const int64_t* counts, const void* a, const void* b,
                  Products* products);
Error Combine(Stream stream, DType dtype, int num_tensors, const int64_t* counts, const double* factors, const void* a,
              const void* b, void* out);

}  // namespace lockstep::device
