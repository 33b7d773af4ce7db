#include <algorithm>
#include <atomic>
#include <string>

#include "core/device/kernels.h"
#include "core/device/runtime.h"

// The functions of the table that only hand calls on to CUDA.
//
namespace lockstep::device {
namespace {

// Answers a question whether something has ended.
Error Answer(cudaError_t error, bool* is_done) {
  *is_done = error == cudaSuccess;
  return Done(error) == cudaErrorNotReady ? kSuccess : static_cast<Error>(error);
}

const char* ErrorText(Error error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

Error DriverVersion(int* version) { return Done(cudaDriverGetVersion(version)); }

std::string VersionText(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

Error DeviceCount(int* count, const char** why) {
  const Error error = Done(cudaGetDeviceCount(count));
  *why = "";
  if (error == kSuccess && *count > 0) return kSuccess;
  *count = 0;
  static const auto& text = *new std::string([error] {
    int driver = 0;
    DriverVersion(&driver);
    if (driver == 0) return std::string("no driver of NVIDIA is installed");
    return std::string(ErrorText(error == kSuccess ? static_cast<Error>(cudaErrorNoDevice) : error)) +
           " (the driver supports CUDA " + VersionText(driver) + ", this library needs " + VersionText(CUDART_VERSION) +
           ")";
  }());
  *why = text.c_str();
  return kSuccess;
}

Error GetProperties(int device, Properties* properties) {
  cudaDeviceProp found;
  if (const Error error = Done(cudaGetDeviceProperties(&found, device))) return error;
  *properties = {};
  std::copy_n(found.name, sizeof(properties->name), properties->name);
  properties->major = found.major;
  properties->minor = found.minor;
  properties->multiprocessors = found.multiProcessorCount;
  int current = 0;
  if (const Error error = Done(cudaGetDevice(&current))) return error;
  if (const Error error = Done(cudaSetDevice(device))) return error;
  size_t free = 0, total = 0;
  const Error error = Done(cudaMemGetInfo(&free, &total));
  properties->free_bytes = static_cast<int64_t>(free);
  properties->memory_bytes = static_cast<int64_t>(total);
  const Error restored = Done(cudaSetDevice(current));
  return error != kSuccess ? error : restored;
}

Error CanAccessPeer(int device, int peer, bool* can) {
  int answer = 0;
  const Error error = Done(cudaDeviceCanAccessPeer(&answer, device, peer));
  *can = answer != 0;
  return error;
}

Error SetDevice(int device) { return Done(cudaSetDevice(device)); }
Error GetDevice(int* device) { return Done(cudaGetDevice(device)); }

Error Allocate(int64_t bytes, void** memory) { return Done(cudaMalloc(memory, static_cast<size_t>(bytes))); }
Error Deallocate(void* memory) { return Done(cudaFree(memory)); }
Error AllocatePinned(int64_t bytes, void** memory) { return Done(cudaMallocHost(memory, static_cast<size_t>(bytes))); }
Error DeallocatePinned(void* memory) { return Done(cudaFreeHost(memory)); }

Error CreateStream(Stream* stream) {
  cudaStream_t raw = nullptr;
  const Error error = Done(cudaStreamCreateWithFlags(&raw, cudaStreamNonBlocking));
  *stream = reinterpret_cast<Stream>(raw);
  return error;
}
Error DestroyStream(Stream stream) { return Done(cudaStreamDestroy(Raw(stream))); }
Error SynchronizeStream(Stream stream) { return Done(cudaStreamSynchronize(Raw(stream))); }
Error IsIdle(Stream stream, bool* is_idle) { return Answer(cudaStreamQuery(Raw(stream)), is_idle); }
Error CallHost(Stream stream, void (*function)(void*), void* argument) {
  return Done(cudaLaunchHostFunc(Raw(stream), function, argument));
}
Error WaitValueOf(Stream stream, uint32_t* at, uint32_t value) { return Done(WaitValue(Raw(stream), at, value)); }

Error CreateEvent(bool is_timed, Event* event) {
  cudaEvent_t raw = nullptr;
  const Error error = Done(cudaEventCreateWithFlags(&raw, is_timed ? cudaEventDefault : cudaEventDisableTiming));
  *event = reinterpret_cast<Event>(raw);
  return error;
}
Error DestroyEvent(Event event) { return Done(cudaEventDestroy(Raw(event))); }
Error RecordEvent(Event event, Stream stream) { return Done(cudaEventRecord(Raw(event), Raw(stream))); }
Error WaitEvent(Stream stream, Event event) { return Done(cudaStreamWaitEvent(Raw(stream), Raw(event), 0)); }
Error HasPassed(Event event, bool* has_passed) { return Answer(cudaEventQuery(Raw(event)), has_passed); }
Error SynchronizeEvent(Event event) { return Done(cudaEventSynchronize(Raw(event))); }
Error ElapsedMs(Event begin, Event end, float* ms) { return Done(cudaEventElapsedTime(ms, Raw(begin), Raw(end))); }

Error Fill(Stream stream, void* to, int byte, int64_t bytes) {
  return Done(cudaMemsetAsync(to, byte, static_cast<size_t>(bytes), Raw(stream)));
}

// Returns "CUDA 13.0" or "emulator 13.0".
const char* RuntimeText() {
  static const auto& text = *new std::string(LOCKSTEP_DEVICE_RUNTIME " " + VersionText(CUDART_VERSION));
  return text.c_str();
}

const Library& TheLibrary() {
  static const auto& library = *new Library{
      .interface_id = InterfaceId(),
      .runtime = RuntimeText(),
      .error_text = &ErrorText,
      .device_count = &DeviceCount,
      .driver_version = &DriverVersion,
      .properties = &GetProperties,
      .can_access_peer = &CanAccessPeer,
      .set_device = &SetDevice,
      .get_device = &GetDevice,
      .allocate = &Allocate,
      .deallocate = &Deallocate,
      .allocate_pinned = &AllocatePinned,
      .deallocate_pinned = &DeallocatePinned,
      .create_stream = &CreateStream,
      .destroy_stream = &DestroyStream,
      .synchronize_stream = &SynchronizeStream,
      .is_idle = &IsIdle,
      .call_host = &CallHost,
      .wait_value = &WaitValueOf,
      .create_event = &CreateEvent,
      .destroy_event = &DestroyEvent,
      .record_event = &RecordEvent,
      .wait_event = &WaitEvent,
      .has_passed = &HasPassed,
      .synchronize_event = &SynchronizeEvent,
      .elapsed_ms = &ElapsedMs,
      .copy = &Copy,
      .fill = &Fill,
      .copy_pieces = &CopyPieces,
      .reduce = &Reduce,
      .scale = &Scale,
      .divide = &Divide,
      .convert = &Convert,
      .fill_neutral = &FillNeutral,
      .dot_products = &DotProducts,
      .combine = &Combine,
  };
  return library;
}

}  // namespace

Error Copy(Stream stream, void* to, const void* from, int64_t bytes) {
  return Done(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, Raw(stream)));
}

// Asks CUDA once for each device.
int NumBlocks(int64_t count) {
  constexpr int kMaxDevices = 64, kBlocksPerMultiprocessor = 8;
  static std::atomic<int> most[kMaxDevices] = {};
  int device = 0;
  if (Done(cudaGetDevice(&device)) != kSuccess || device >= kMaxDevices) device = 0;
  int blocks = most[device].load(std::memory_order_relaxed);
  if (blocks == 0) {
    cudaDeviceProp found = {};
    const bool is_known = Done(cudaGetDeviceProperties(&found, device)) == kSuccess;
    blocks = is_known ? found.multiProcessorCount * kBlocksPerMultiprocessor : kBlocksPerMultiprocessor;
    most[device].store(blocks, std::memory_order_relaxed);
  }
  return static_cast<int>(std::clamp<int64_t>((count + kThreads - 1) / kThreads, 1, blocks));
}

}  // namespace lockstep::device

extern "C" [[gnu::visibility("default")]] const lockstep::device::Library* lockstep_device_library() {
  return &lockstep::device::TheLibrary();
}
