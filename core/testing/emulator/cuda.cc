#include "core/testing/emulator/cuda.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/testing/emulator/memory.h"

namespace lockstep::emulator {
namespace {

constexpr int kMultiprocessors = 4;

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

int64_t DelayUs() {
  const char* const delay = std::getenv("LOCKSTEP_EMULATED_DELAY_US");
  return delay == nullptr ? 0 : std::atoll(delay);
}

// The streams that this library made. Streams of others may be used as well; they belong to no device.
struct Streams {
  std::mutex mutex;
  struct Own {
    std::shared_ptr<Stream> stream;
    int device;
  };
  std::map<Stream*, Own> own;
  std::map<int, Stream*> defaults;  // of each device: what CUDA calls stream 0
};

Streams& TheStreams() {
  static auto& streams = *new Streams();
  return streams;
}

Stream* NewStream(Streams& streams) {
  const auto stream = std::make_shared<Stream>(DelayUs());
  streams.own.emplace(stream.get(), Streams::Own{stream, current_device});
  return stream.get();
}

// Returns the stream, or the default stream of the current device for null.
Stream& Find(cudaStream_t stream) {
  if (stream != nullptr) return *stream;
  Streams& streams = TheStreams();
  const std::lock_guard lock(streams.mutex);
  Stream*& found = streams.defaults[current_device];
  if (found == nullptr) found = NewStream(streams);
  return *found;
}

bool IsOfOtherDevice(cudaStream_t stream) {
  Streams& streams = TheStreams();
  const std::lock_guard lock(streams.mutex);
  const auto found = streams.own.find(stream);
  return found != streams.own.end() && found->second.device != current_device;
}

// Waits until all work has run that was put into streams of the device. Other threads may need the streams meanwhile,
// so that this work can end.
void Synchronize(int device) {
  std::vector<std::shared_ptr<Stream>> of_device;
  {
    Streams& streams = TheStreams();
    const std::lock_guard lock(streams.mutex);
    for (const auto& [stream, own] : streams.own) {
      if (own.device == device) of_device.push_back(own.stream);
    }
  }
  for (const auto& stream : of_device) stream->Drain();
}

bool HasDevice(int device) { return device >= 0 && device < NumDevices(); }

bool IsValid(Index3 grid, Index3 block, size_t dynamic_bytes) {
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  return threads > 0 && threads <= kMaxThreads && grid.x > 0 && grid.y > 0 && grid.z > 0 && grid.y < 65536 &&
         grid.z < 65536 && dynamic_bytes <= kMaxSharedBytes;
}

}  // namespace

cudaError_t WaitValue(cudaStream_t stream, uint32_t* at, uint32_t value) {
  Find(stream).PostForHost([at, value] {
    constexpr auto kSleep = std::chrono::microseconds(20);
    const std::atomic_ref<uint32_t> number(*at);
    while (static_cast<int32_t>(number.load(std::memory_order_acquire) - value) < 0)
      std::this_thread::sleep_for(kSleep);
  });
  return cudaSuccess;
}

cudaError_t LaunchKernel(cudaStream_t stream, Index3 grid, Index3 block, size_t dynamic_bytes,
                         std::function<void()> body) {
  if (!IsValid(grid, block, dynamic_bytes)) return last_error = cudaErrorInvalidConfiguration;
  if (IsOfOtherDevice(stream)) return last_error = cudaErrorInvalidResourceHandle;
  Find(stream).Post([grid, block, dynamic_bytes, body = std::move(body)] {
    RunKernel(grid, block, static_cast<int64_t>(dynamic_bytes), body);
  });
  return cudaSuccess;
}

}  // namespace lockstep::emulator

using namespace lockstep::emulator;  // NOLINT(google-build-using-namespace): CUDA's names are in no namespace

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorInsufficientDriver: return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorNotReady: return "device not ready";
  }
  return "unrecognized error code";
}

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = NumDevices();
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!HasDevice(device)) return cudaErrorInvalidDevice;
  *properties = {};
  properties->totalGlobalMem = static_cast<size_t>(DeviceBytes());
  properties->major = 9;
  properties->multiProcessorCount = kMultiprocessors;
  std::snprintf(properties->name, sizeof(properties->name), "emulated device %d", device);
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (!HasDevice(device) || !HasDevice(peer)) return cudaErrorInvalidDevice;
  *can = device != peer;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (!HasDevice(device)) return cudaErrorInvalidDevice;
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = static_cast<size_t>(FreeBytes(current_device));
  *total = static_cast<size_t>(DeviceBytes());
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  *memory = bytes == 0 ? nullptr : AllocateOnDevice(current_device, static_cast<int64_t>(bytes));
  return *memory == nullptr && bytes > 0 ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t cudaFree(void* memory) {
  if (memory == nullptr) return cudaSuccess;
  const int device = DeviceOf(memory);
  if (device < 0) return cudaErrorInvalidValue;
  Synchronize(device);
  return FreeOnDevice(memory) ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaMallocAsync(void** memory, size_t bytes, cudaStream_t) { return cudaMalloc(memory, bytes); }

cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  if (memory == nullptr) return cudaSuccess;
  if (DeviceOf(memory) < 0) return cudaErrorInvalidValue;
  Find(stream).PostForHost([memory] { FreeOnDevice(memory); });
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  constexpr size_t kAlignment = 4096;  // CUDA takes whole pages, and TensorFlow relies on the alignment of tensors
  return ::posix_memalign(memory, kAlignment, std::max<size_t>(bytes, 1)) == 0 ? cudaSuccess
                                                                               : cudaErrorMemoryAllocation;
}

cudaError_t cudaFreeHost(void* memory) {
  std::free(memory);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  Streams& streams = TheStreams();
  const std::lock_guard lock(streams.mutex);
  *stream = NewStream(streams);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Streams& streams = TheStreams();
  std::shared_ptr<Stream> last;
  const std::lock_guard lock(streams.mutex);
  const auto found = streams.own.find(stream);
  if (found == streams.own.end()) return cudaErrorInvalidResourceHandle;
  last = std::move(found->second.stream);
  streams.own.erase(found);
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Find(stream).Drain();
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) { return Find(stream).is_idle() ? cudaSuccess : cudaErrorNotReady; }

// One call at a time: CUDA may have one thread for all streams, so functions that wait for each other hang.
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  Find(stream).PostForHost([function, argument] {
    static std::mutex& mutex = *new std::mutex;
    const std::lock_guard lock(mutex);
    function(argument);
  });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new Event(flags == cudaEventDefault);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->Record(Find(stream));
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  event->LetWait(Find(stream));
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) { return event->has_passed() ? cudaSuccess : cudaErrorNotReady; }

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  event->Synchronize();
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  if (!begin->is_timed() || !end->is_timed()) return cudaErrorInvalidResourceHandle;
  const int64_t from = begin->passed_ns(), to = end->passed_ns();
  if (from == 0 || to == 0) return cudaErrorNotReady;
  *ms = static_cast<float>(static_cast<double>(to - from) / 1e6);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  if (bytes > 0) Find(stream).Post([=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* to, int byte, size_t bytes, cudaStream_t stream) {
  if (bytes > 0) Find(stream).Post([=] { std::memset(to, byte, bytes); });
  return cudaSuccess;
}
