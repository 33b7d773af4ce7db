#pragma once

#include <cstdint>

#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/comm/collective/communicator.h"

// Folder device/: the part of the engine that works in the memory of GPUs.
//
// Code for the device (*.cu, *.cuh) is one source for three compilers: nvcc, clang, and, for tests, g++ with the
// emulator (core/testing/emulator). It is a library of its own, which shows one symbol. Host code calls it through
// the table below, so no host code needs CUDA's headers, and the op library loads on machines without a GPU.
// ```
// op library                                   liblockstep_cuda13.so, or liblockstep_emulated.so for tests
// device/load.h --> LoadLibrary --dlopen-->    lockstep_device_library() --> device::Library
// ```
namespace lockstep::device {

// A queue of work of a device, which runs it in order: a cudaStream_t, or the emulator's. TensorFlow's streams are such
// streams too.
using Stream = struct OpaqueStream*;
// A point in a stream: a cudaEvent_t, or the emulator's.
using Event = struct OpaqueEvent*;

// The result of a function of the library: a cudaError_t, 0 for success.
using Error = int;
inline constexpr Error kSuccess = 0;
inline constexpr Error kOutOfMemory = 2;  // cudaErrorMemoryAllocation

struct Properties {
  char name[256];
  int major, minor;  // the compute capability: 9, 0 for an H100
  int multiprocessors;
  int64_t memory_bytes, free_bytes;
};

// A part of a bucket: `bytes` bytes are copied from `from` to `to`, and zeros follow up to `padded_bytes`. Both places
// are aligned for the type of the elements, and lie in the device's memory.
struct Piece {
  const void* from;
  void* to;
  int64_t bytes;
  int64_t padded_bytes;
};

// The three sums of two tensors that Adasum needs.
struct Products {
  double ab, aa, bb;
};

// The functions of the library.
//
// Functions with a stream only put work into it, and return before it has run; memory that they name has to live until
// then, except for arguments that this comment calls copied. All pointers without another word are of the device's
// memory. Functions run on the calling thread's device (set_device). Any thread may call them at any time. They
// return an error instead of waiting for one: an error of earlier work may be returned by any later function, as in
// CUDA.
//
// Results do not depend on the device or on the schedule: reductions and conversions have the bits of the CPU's
// functions that the comments name.
struct Library {
  // InterfaceId() of the sources: the first member, because a library with another id may have other members.
  const char* interface_id;
  // "CUDA 13.0", or "emulator 13.0".
  const char* runtime;
  // Returns the text of an error; it lives as long as the process.
  const char* (*error_text)(Error error);

  // Devices. No driver and no device is not an error: `count` is 0 and `why` gets the reason, which lives as long as
  // the process.
  Error (*device_count)(int* count, const char** why);
  Error (*driver_version)(int* version);  // 13000 is 13.0; 0 without a driver
  Error (*properties)(int device, Properties* properties);
  Error (*can_access_peer)(int device, int peer, bool* can);
  Error (*set_device)(int device);
  Error (*get_device)(int* device);

  // Memory. deallocate waits until all work of the device has ended.
  Error (*allocate)(int64_t bytes, void** memory);
  Error (*deallocate)(void* memory);
  // Memory of the host that the device copies from and to without staging.
  Error (*allocate_pinned)(int64_t bytes, void** memory);
  Error (*deallocate_pinned)(void* memory);

  // Streams. synchronize waits until all work in the stream has run; is_idle does not wait.
  Error (*create_stream)(Stream* stream);
  Error (*destroy_stream)(Stream stream);
  Error (*synchronize_stream)(Stream stream);
  Error (*is_idle)(Stream stream, bool* is_idle);
  // Puts a call of `function(argument)` on a thread of the host into the stream. It must not call this library.
  // It runs when all such calls of earlier work have returned, in any stream: CUDA may have one thread for them.
  Error (*call_host)(Stream stream, void (*function)(void* argument), void* argument);
  // Holds the stream until the number at `at`, in pinned memory, is `value` or a later one: until the difference is 0
  // or more as an int32. The host sets it by an atomic store.
  Error (*wait_value)(Stream stream, uint32_t* at, uint32_t value);

  // Events. record: the event's point is the present end of the stream. wait: work that is put into the stream later
  // runs after the event's latest point. A new event has passed. is_timed: for elapsed_ms, at some cost.
  Error (*create_event)(bool is_timed, Event* event);
  Error (*destroy_event)(Event event);
  Error (*record_event)(Event event, Stream stream);
  Error (*wait_event)(Stream stream, Event event);
  Error (*has_passed)(Event event, bool* has_passed);
  Error (*synchronize_event)(Event event);
  // The time between two events that have passed, in milliseconds.
  Error (*elapsed_ms)(Event begin, Event end, float* ms);

  // Copies between memories of any kind; copies of memory of the host that is not pinned may wait.
  Error (*copy)(Stream stream, void* to, const void* from, int64_t bytes);
  Error (*fill)(Stream stream, void* to, int byte, int64_t bytes);

  // Copies many pieces with few kernels. pieces: [count], memory of the host, copied.
  Error (*copy_pieces)(Stream stream, const Piece* pieces, int64_t count);
  // out[i] = sources[0][i] op sources[1][i] op ...: FindReduce (core/comm/collective/reduce.h). Source s begins at
  // first + s * stride_bytes; `out` may be one of the sources. INVALID for a mean of integers.
  Error (*reduce)(Stream stream, ReduceOp op, DType dtype, int num_sources, int64_t count, const void* first,
                  int64_t stride_bytes, void* out);
  // out[i] = in[i] * factor: Scale (core/comm/collective/elementwise.h). `out` may be `in`.
  Error (*scale)(Stream stream, DType dtype, double factor, int64_t count, const void* in, void* out);
  // out[i] = in[i] / divisor: Divide, of the same header.
  Error (*divide)(Stream stream, DType dtype, int64_t divisor, int64_t count, const void* in, void* out);
  // Converts between types of floating-point numbers, rounding to nearest even. Also between a type of integers and the
  // one in which its mean is computed: int32 for less than 32 bits, int64 for 32. Values beyond the range become its
  // limit (ConvertIntegers, of the same header).
  Error (*convert)(Stream stream, DType from, const void* in, int64_t count, DType to, void* out);
  // Fills with the neutral element of a reduction: FillNeutral, of the same header.
  Error (*fill_neutral)(Stream stream, ReduceOp op, DType dtype, int64_t count, void* out);
  // products[t] = the sums of tensor t, in double and in the CPU's order (core/comm/collective/adasum.cc). It depends
  // on the counts only. a, b: the tensors one after another, of float32 or float64. counts: [num_tensors], memory of
  // the host, copied. The call allocates memory of the device in the stream's order, 24 bytes for 4096 elements.
  Error (*dot_products)(Stream stream, DType dtype, int num_tensors, const int64_t* counts, const void* a,
                        const void* b, Products* products);
  // out = factors[2 t] * a + factors[2 t + 1] * b for each tensor t. A factor of 0 leaves out what is infinite or NaN.
  // factors: [2 * num_tensors], memory of the host, copied. `out` may be `a` or `b`.
  Error (*combine)(Stream stream, DType dtype, int num_tensors, const int64_t* counts, const double* factors,
                   const void* a, const void* b, void* out);
};

// The one symbol of the library: a function that returns its Library, which lives as long as the process.
inline constexpr char kLibrarySymbol[] = "lockstep_device_library";

// Returns a hash of the headers that both sides share. The build writes it.
const char* InterfaceId();

// Returns OK, or INTERNAL with the text of the error after `what`; RESOURCE_EXHAUSTED if the device has no memory.
Status ToStatus(const Library& library, Error error, const char* what);

}  // namespace lockstep::device
