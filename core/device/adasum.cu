#include <algorithm>
#include <cmath>
#include <vector>

#include "core/device/kernels.h"
#include "core/device/packs.cuh"

// The dot products of an adaptive sum (core/comm/collective/adasum.h), with the bits that the CPU computes: a tensor is
// cut into blocks of 4096 elements from its start, four sums take turns at a block's elements, and both the four sums
// and the blocks' sums are added in their order. So a sum is one chain of additions. A block of threads reads elements
// into shared memory, and 12 of its threads follow the chains from there: 4 sums of 3 products. Many blocks at once
// keep the memory busy.

namespace lockstep::device {
namespace {

constexpr int kBlockElements = 4096;
constexpr int kTile = 1024;  // elements in shared memory
constexpr int kSums = 4;
constexpr int kProducts = 3;  // aa, bb, ab
constexpr int kDotThreads = 128;

// A kernel's arguments hold 4 KiB, and so this many tensors.
constexpr int kBatch = 128;
struct Tensors {
  int count;
  int64_t first_element[kBatch + 1];  // [count + 1], in a and b
  int first_block[kBatch + 1];        // [count + 1], of this batch
};
static_assert(sizeof(Tensors) <= 2048);
struct Factors {
  double values[2 * kBatch];
};

// Sums up the products of one block of a tensor into parts[block].
template <typename T>
__global__ void BlockProductsKernel(Tensors tensors, const T* a, const T* b, Products* parts) {
  LOCKSTEP_SHARED(T, tile_a, kTile);
  LOCKSTEP_SHARED(T, tile_b, kTile);
  LOCKSTEP_SHARED(double, sums, kProducts* kSums);
  const int block = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int t = RangeOf(tensors.first_block, tensors.count, block);
  const int64_t begin = tensors.first_element[t] + int64_t{block - tensors.first_block[t]} * kBlockElements;
  const int64_t end = min(begin + kBlockElements, tensors.first_element[t + 1]);
  const int product = thread / kSums, own = thread % kSums;
  const T* const left = product == 1 ? tile_b : tile_a;
  const T* const right = product == 0 ? tile_a : tile_b;
  double sum = 0;
  for (int64_t at = begin; at < end; at += kTile) {
    const int size = static_cast<int>(min(int64_t{kTile}, end - at));
    for (int i = thread; i < size; i += kDotThreads) {
      tile_a[i] = a[at + i];
      tile_b[i] = b[at + i];
    }
    __syncthreads();
    if (product < kProducts) {
#pragma unroll 8
      for (int i = own; i < size; i += kSums) sum += static_cast<double>(left[i]) * static_cast<double>(right[i]);
    }
    __syncthreads();
  }
  if (product < kProducts) sums[thread] = sum;
  __syncthreads();
  if (thread > 0) return;
  double totals[kProducts] = {};
#pragma unroll
  for (int p = 0; p < kProducts; ++p) {
    for (int i = 0; i < kSums; ++i) totals[p] += sums[p * kSums + i];
  }
  parts[block] = {totals[2], totals[0], totals[1]};
}

// Adds up the parts of each tensor, a thread for each.
__global__ void AddPartsKernel(Tensors tensors, const Products* parts, Products* products) {
  const int t = static_cast<int>(ThreadIndex());
  if (t >= tensors.count) return;
  Products sum = {};
  for (int block = tensors.first_block[t]; block < tensors.first_block[t + 1]; ++block) {
    sum.ab += parts[block].ab;
    sum.aa += parts[block].aa;
    sum.bb += parts[block].bb;
  }
  products[t] = sum;
}

// Returns factor * value; 0 for a tensor that is left out, whatever lies in its place.
__device__ inline double Term(double factor, double value) {
  return factor == 0 && !std::isfinite(value) ? 0.0 : factor * value;
}

// `out` may be `a` or `b`: each element is read before it is written.
template <typename T>
__global__ void CombineKernel(Tensors tensors, Factors factors, const T* a, const T* b, T* out) {
  const int block = static_cast<int>(blockIdx.x);
  const int t = RangeOf(tensors.first_block, tensors.count, block);
  const double of_a = factors.values[2 * t], of_b = factors.values[2 * t + 1];
  const int64_t begin = tensors.first_element[t] + int64_t{block - tensors.first_block[t]} * kBlockElements;
  const int64_t end = min(begin + kBlockElements, tensors.first_element[t + 1]);
#pragma unroll 4
  for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
    out[i] = static_cast<T>(Term(of_a, a[i]) + Term(of_b, b[i]));
  }
}

// Calls `work(tensors, first tensor)` for batches of tensors, until it fails.
template <typename Work>
Error ForBatches(int num_tensors, const int64_t* counts, const Work& work) {
  int64_t element = 0;
  for (int first = 0; first < num_tensors; first += kBatch) {
    Tensors tensors = {};
    tensors.first_element[0] = element;
    for (; tensors.count < std::min(kBatch, num_tensors - first);) {
      const int64_t count = counts[first + tensors.count];
      const int64_t blocks = (count + kBlockElements - 1) / kBlockElements;
      if (count < 0 || tensors.first_block[tensors.count] + blocks > INT32_MAX) return cudaErrorInvalidValue;
      element += count;
      tensors.first_block[tensors.count + 1] = tensors.first_block[tensors.count] + static_cast<int>(blocks);
      tensors.first_element[++tensors.count] = element;
    }
    if (const Error error = work(tensors, first); error != kSuccess) return error;
  }
  return kSuccess;
}

// Returns the number of blocks of a batch.
int BlocksOf(const Tensors& tensors) { return tensors.first_block[tensors.count]; }

template <typename T>
Error BatchProducts(cudaStream_t stream, const Tensors& tensors, const T* a, const T* b, Products* products) {
  void* parts = nullptr;
  if (BlocksOf(tensors) > 0) {
    if (const Error error = Done(cudaMallocAsync(&parts, sizeof(Products) * BlocksOf(tensors), stream))) return error;
  }
  auto* const of_blocks = static_cast<Products*>(parts);
  Error error = kSuccess;
  if (parts != nullptr) {
    error = Launch(stream, BlocksOf(tensors), kDotThreads, 0, BlockProductsKernel<T>, tensors, a, b, of_blocks);
  }
  if (error == kSuccess) error = Launch(stream, 1, kBatch, 0, AddPartsKernel, tensors, of_blocks, products);
  const Error freed = parts == nullptr ? kSuccess : Done(cudaFreeAsync(parts, stream));
  return error != kSuccess ? error : freed;
}

}  // namespace

Error DotProducts(Stream stream, DType dtype, int num_tensors, const int64_t* counts, const void* a, const void* b,
                  Products* products) {
  return ForBatches(num_tensors, counts, [&](const Tensors& tensors, int first) -> Error {
    const auto run = [&]<typename T>(T) {
      return BatchProducts(Raw(stream), tensors, static_cast<const T*>(a), static_cast<const T*>(b), products + first);
    };
    if (dtype == DType::kFloat32) return run(float());
    return dtype == DType::kFloat64 ? run(double()) : cudaErrorInvalidValue;
  });
}

Error Combine(Stream stream, DType dtype, int num_tensors, const int64_t* counts, const double* factors, const void* a,
              const void* b, void* out) {
  return ForBatches(num_tensors, counts, [&](const Tensors& tensors, int first) -> Error {
    Factors own = {};
    std::copy_n(factors + int64_t{2} * first, 2 * tensors.count, own.values);
    const auto run = [&]<typename T>(T) -> Error {
      if (BlocksOf(tensors) == 0) return kSuccess;
      return Launch(Raw(stream), BlocksOf(tensors), kThreads, 0, CombineKernel<T>, tensors, own,
                    static_cast<const T*>(a), static_cast<const T*>(b), static_cast<T*>(out));
    };
    if (dtype == DType::kFloat32) return run(float());
    return dtype == DType::kFloat64 ? run(double()) : cudaErrorInvalidValue;
  });
}

}  // namespace lockstep::device
