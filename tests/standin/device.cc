// A stand-in GPU for TensorFlow: a plug-in of its C interface for devices (PluggableDevice), of type GPU. It takes
// its streams, events and memory from a device::Library. With the emulated library, programs meet a GPU's placement,
// kinds of memory, copies and order of streams on a machine without a GPU, with tensorflow-cpu.
//
// Only tests load it, by tests/standin/plugin.py. Environment variables, because TensorFlow passes no arguments:
// LOCKSTEP_STANDIN_LIBRARY, the path of the library; LOCKSTEP_STANDIN_DEVICES, the number of devices (1).
#include <dlfcn.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "core/device/library.h"
#include "tensorflow/c/experimental/stream_executor/stream_executor.h"
#include "tests/standin/counters.h"

namespace lockstep::standin {
namespace {

using device::Error;
using device::kSuccess;
using device::Library;

[[noreturn]] void Die(const char* what, const char* why) {
  std::fprintf(stderr, "stand-in device: %s: %s\n", what, why);
  std::abort();
}

const Library& TheLibrary() {
  static const Library* const library = [] {
    const char* const path = std::getenv("LOCKSTEP_STANDIN_LIBRARY");
    void* const handle = path == nullptr ? nullptr : dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) Die("LOCKSTEP_STANDIN_LIBRARY", path == nullptr ? "it is not set" : dlerror());
    auto* const get = reinterpret_cast<const Library* (*)()>(dlsym(handle, device::kLibrarySymbol));
    if (get == nullptr) Die(path, dlerror());
    return get();
  }();
  return *library;
}

// All memory of a device. TensorFlow's allocator takes most of it at once, unless it may grow.
constexpr int64_t kMemoryBytes = int64_t{1} << 30;

std::atomic<int64_t> used_bytes{0};

// The plug-in's handles are the library's, but for timers and events, which TensorFlow's types cannot name.
device::Stream StreamOf(SP_Stream stream) { return reinterpret_cast<device::Stream>(stream); }
device::Event EventOf(SP_Event event) { return reinterpret_cast<device::Event>(event); }

void SetStatus(TF_Status* status, Error error, const char* what) {
  if (error == kSuccess) return TF_SetStatus(status, TF_OK, "");
  TF_SetStatus(status, TF_INTERNAL, (std::string(what) + ": " + TheLibrary().error_text(error)).c_str());
}

// Runs `call`, of the library, on the device, and passes its error on.
template <typename Call>
void On(const SP_Device* device, TF_Status* status, const char* what, const Call& call) {
  const Error error = TheLibrary().set_device(device->ordinal);
  SetStatus(status, error != kSuccess ? error : call(TheLibrary()), what);
}

// The same where TensorFlow takes no error.
template <typename Call>
void OnOrDie(const SP_Device* device, const char* what, const Call& call) {
  Error error = TheLibrary().set_device(device->ordinal);
  if (error == kSuccess) error = call(TheLibrary());
  if (error != kSuccess) Die(what, TheLibrary().error_text(error));
}

// Memory.

void Allocate(const SP_Device* device, uint64_t size, int64_t, SP_DeviceMemoryBase* memory) {
  memory->struct_size = SP_DEVICE_MEMORY_BASE_STRUCT_SIZE;
  memory->opaque = nullptr;
  memory->size = memory->payload = 0;
  memory->ext = nullptr;
  const auto bytes = static_cast<int64_t>(size);
  if (TheLibrary().set_device(device->ordinal) != kSuccess ||
      TheLibrary().allocate(bytes, &memory->opaque) != kSuccess) {
    memory->opaque = nullptr;
    return;
  }
  memory->size = size;
  used_bytes += bytes;
}

void Deallocate(const SP_Device* device, SP_DeviceMemoryBase* memory) {
  if (memory->opaque == nullptr) return;
  OnOrDie(device, "deallocate", [&](const Library& library) { return library.deallocate(memory->opaque); });
  used_bytes -= static_cast<int64_t>(memory->size);
  memory->opaque = nullptr;
  memory->size = 0;
}

void* AllocateOnHost(const SP_Device*, uint64_t size) {
  void* memory = nullptr;
  return TheLibrary().allocate_pinned(static_cast<int64_t>(size), &memory) == kSuccess ? memory : nullptr;
}

void DeallocateOnHost(const SP_Device* device, void* memory) {
  OnOrDie(device, "deallocate_pinned", [&](const Library& library) { return library.deallocate_pinned(memory); });
}

TF_Bool GetAllocatorStats(const SP_Device*, SP_AllocatorStats* stats) {
  stats->struct_size = SP_ALLOCATORSTATS_STRUCT_SIZE;
  stats->bytes_in_use = used_bytes;
  return 1;
}

TF_Bool GetMemoryUsage(const SP_Device*, int64_t* free, int64_t* total) {
  *total = kMemoryBytes;
  *free = kMemoryBytes - used_bytes;
  return 1;
}

// Streams and events.

void CreateStream(const SP_Device* device, SP_Stream* stream, TF_Status* status) {
  On(device, status, "create_stream",
     [&](const Library& library) { return library.create_stream(reinterpret_cast<device::Stream*>(stream)); });
}

void DestroyStream(const SP_Device* device, SP_Stream stream) {
  OnOrDie(device, "destroy_stream", [&](const Library& library) { return library.destroy_stream(StreamOf(stream)); });
}

void CreateDependency(const SP_Device* device, SP_Stream dependent, SP_Stream other, TF_Status* status) {
  On(device, status, "create_stream_dependency", [&](const Library& library) {
    device::Event event;
    Error error = library.create_event(false, &event);
    if (error != kSuccess) return error;
    error = library.record_event(event, StreamOf(other));
    if (error == kSuccess) error = library.wait_event(StreamOf(dependent), event);
    const Error destroyed = library.destroy_event(event);
    return error == kSuccess ? destroyed : error;
  });
}

void GetStreamStatus(const SP_Device*, SP_Stream, TF_Status* status) { TF_SetStatus(status, TF_OK, ""); }

void CreateEvent(const SP_Device* device, SP_Event* event, TF_Status* status) {
  On(device, status, "create_event",
     [&](const Library& library) { return library.create_event(false, reinterpret_cast<device::Event*>(event)); });
}

void DestroyEvent(const SP_Device* device, SP_Event event) {
  OnOrDie(device, "destroy_event", [&](const Library& library) { return library.destroy_event(EventOf(event)); });
}

SE_EventStatus GetEventStatus(const SP_Device*, SP_Event event) {
  bool has_passed = false;
  if (TheLibrary().has_passed(EventOf(event), &has_passed) != kSuccess) return SE_EVENT_ERROR;
  return has_passed ? SE_EVENT_COMPLETE : SE_EVENT_PENDING;
}

void RecordEvent(const SP_Device* device, SP_Stream stream, SP_Event event, TF_Status* status) {
  On(device, status, "record_event",
     [&](const Library& library) { return library.record_event(EventOf(event), StreamOf(stream)); });
}

void WaitForEvent(const SP_Device* const device, SP_Stream stream, SP_Event event, TF_Status* const status) {
  On(device, status, "wait_event",
     [&](const Library& library) { return library.wait_event(StreamOf(stream), EventOf(event)); });
}

void BlockForEvent(const SP_Device* device, SP_Event event, TF_Status* status) {
  On(device, status, "synchronize_event",
     [&](const Library& library) { return library.synchronize_event(EventOf(event)); });
}

void BlockForStream(const SP_Device* device, SP_Stream stream, TF_Status* status) {
  On(device, status, "synchronize_stream",
     [&](const Library& library) { return library.synchronize_stream(StreamOf(stream)); });
}

// deallocate is the library's only function that waits for all of a device's work.
Error DrainDevice(const Library& library) {
  void* memory = nullptr;
  const Error error = library.allocate(1, &memory);
  return error == kSuccess ? library.deallocate(memory) : error;
}

void SynchronizeAll(const SP_Device* device, TF_Status* status) { On(device, status, "synchronize", DrainDevice); }

// Calls TensorFlow's function on the stream's thread.
struct Callback {
  SE_StatusCallbackFn function;
  void* argument;
};

TF_Bool HostCallback(const SP_Device* device, SP_Stream stream, SE_StatusCallbackFn function, void* argument) {
  OnOrDie(device, "call_host", [&](const Library& library) {
    return library.call_host(
        StreamOf(stream),
        [](void* given) {
          const auto* const callback = static_cast<Callback*>(given);
          TF_Status* const status = TF_NewStatus();
          callback->function(callback->argument, status);
          TF_DeleteStatus(status);
          delete callback;
        },
        new Callback{function, argument});
  });
  return 1;
}

// Copies.

void CopyToHost(const SP_Device* device, SP_Stream stream, void* to, const SP_DeviceMemoryBase* from, uint64_t size,
                TF_Status* status) {
  Count(kToHost, size);
  On(device, status, "copy", [&](const Library& library) {
    return library.copy(StreamOf(stream), to, from->opaque, static_cast<int64_t>(size));
  });
}

void CopyToDevice(const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* to, const void* from, uint64_t size,
                  TF_Status* status) {
  Count(kToDevice, size);
  On(device, status, "copy", [&](const Library& library) {
    return library.copy(StreamOf(stream), to->opaque, from, static_cast<int64_t>(size));
  });
}

void CopyOnDevice(const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* to, const SP_DeviceMemoryBase* from,
                  uint64_t size, TF_Status* status) {
  Count(kOnDevice, size);
  On(device, status, "copy", [&](const Library& library) {
    return library.copy(StreamOf(stream), to->opaque, from->opaque, static_cast<int64_t>(size));
  });
}

// Runs `put` with a stream of its own and waits for it.
template <typename Put>
void Synchronously(const SP_Device* device, TF_Status* status, const Put& put) {
  On(device, status, "copy", [&](const Library& library) {
    device::Stream stream;
    Error error = library.create_stream(&stream);
    if (error != kSuccess) return error;
    error = put(library, stream);
    if (error == kSuccess) error = library.synchronize_stream(stream);
    const Error destroyed = library.destroy_stream(stream);
    return error == kSuccess ? destroyed : error;
  });
}

void CopyToHostNow(const SP_Device* device, void* to, const SP_DeviceMemoryBase* from, uint64_t size,
                   TF_Status* status) {
  Count(kToHost, size);
  Synchronously(device, status, [&](const Library& library, device::Stream stream) {
    return library.copy(stream, to, from->opaque, static_cast<int64_t>(size));
  });
}

void CopyToDeviceNow(const SP_Device* device, SP_DeviceMemoryBase* to, const void* from, uint64_t size,
                     TF_Status* status) {
  Count(kToDevice, size);
  Synchronously(device, status, [&](const Library& library, device::Stream stream) {
    return library.copy(stream, to->opaque, from, static_cast<int64_t>(size));
  });
}

void CopyOnDeviceNow(const SP_Device* device, SP_DeviceMemoryBase* to, const SP_DeviceMemoryBase* from, uint64_t size,
                     TF_Status* status) {
  Count(kOnDevice, size);
  Synchronously(device, status, [&](const Library& library, device::Stream stream) {
    return library.copy(stream, to->opaque, from->opaque, static_cast<int64_t>(size));
  });
}

void Fill(const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* to, uint8_t byte, uint64_t size,
          TF_Status* status) {
  On(device, status, "fill", [&](const Library& library) {
    return library.fill(StreamOf(stream), to->opaque, byte, static_cast<int64_t>(size));
  });
}

void FillWithZeros(const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* to, uint64_t size,
                   TF_Status* status) {
  Fill(device, stream, to, 0, size, status);
}

void FillWithWords(const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* to, uint32_t word, uint64_t size,
                   TF_Status* status) {
  const std::vector<uint32_t> words(size / sizeof(word), word);
  On(device, status, "copy", [&](const Library& library) {
    const Error error = library.copy(StreamOf(stream), to->opaque, words.data(), static_cast<int64_t>(size));
    return error == kSuccess ? library.synchronize_stream(StreamOf(stream)) : error;
  });
}

// Timers, which nothing here reads.

void CreateTimer(const SP_Device*, SP_Timer* timer, TF_Status* status) {
  *timer = reinterpret_cast<SP_Timer>(new char);
  TF_SetStatus(status, TF_OK, "");
}
void DestroyTimer(const SP_Device*, SP_Timer timer) { delete reinterpret_cast<char*>(timer); }
void StartOrStopTimer(const SP_Device*, SP_Stream, SP_Timer, TF_Status* status) { TF_SetStatus(status, TF_OK, ""); }
uint64_t NoTime(SP_Timer) { return 0; }

// The platform.

void CountDevices(const SP_Platform*, int* count, TF_Status* status) {
  const char* const wanted = std::getenv("LOCKSTEP_STANDIN_DEVICES");
  *count = wanted == nullptr ? 1 : std::atoi(wanted);
  int there = 0;
  const char* why = "";
  SetStatus(status, TheLibrary().device_count(&there, &why), "device_count");
  if (there < *count) Die("LOCKSTEP_STANDIN_DEVICES", "the library has fewer devices");
}

void CreateDevice(const SP_Platform*, SE_CreateDeviceParams* parameters, TF_Status* status) {
  SP_Device* const device = parameters->device;
  device->struct_size = SP_DEVICE_STRUCT_SIZE;
  device->ordinal = parameters->ordinal;
  device->hardware_name = "stand-in";
  device->device_vendor = "Lockstep";
  device->pci_bus_id = "0000:00:00.0";
  TF_SetStatus(status, TF_OK, "");
}

void CreateDeviceFunctions(const SP_Platform*, SE_CreateDeviceFnsParams* parameters, TF_Status* status) {
  *parameters->device_fns = {SP_DEVICE_FNS_STRUCT_SIZE, nullptr, [](const SP_Device*) -> int32_t { return 0; },
                             [](const SP_Device*) -> int64_t { return 1; }, [](const SP_Device*) { return 1.0; }};
  TF_SetStatus(status, TF_OK, "");
}

void CreateTimerFunctions(const SP_Platform*, SP_TimerFns* functions, TF_Status* status) {
  functions->struct_size = SP_TIMER_FNS_STRUCT_SIZE;
  functions->nanoseconds = NoTime;
  TF_SetStatus(status, TF_OK, "");
}

void CreateExecutor(const SP_Platform*, SE_CreateStreamExecutorParams* parameters, TF_Status* status) {
  SP_StreamExecutor* const executor = parameters->stream_executor;
  executor->struct_size = SP_STREAMEXECUTOR_STRUCT_SIZE;
  executor->allocate = Allocate;
  executor->deallocate = Deallocate;
  executor->host_memory_allocate = AllocateOnHost;
  executor->host_memory_deallocate = DeallocateOnHost;
  executor->get_allocator_stats = GetAllocatorStats;
  executor->device_memory_usage = GetMemoryUsage;
  executor->create_stream = CreateStream;
  executor->destroy_stream = DestroyStream;
  executor->create_stream_dependency = CreateDependency;
  executor->get_stream_status = GetStreamStatus;
  executor->create_event = CreateEvent;
  executor->destroy_event = DestroyEvent;
  executor->get_event_status = GetEventStatus;
  executor->record_event = RecordEvent;
  executor->wait_for_event = WaitForEvent;
  executor->block_host_for_event = BlockForEvent;
  executor->block_host_until_done = BlockForStream;
  executor->synchronize_all_activity = SynchronizeAll;
  executor->create_timer = CreateTimer;
  executor->destroy_timer = DestroyTimer;
  executor->start_timer = StartOrStopTimer;
  executor->stop_timer = StartOrStopTimer;
  executor->memcpy_dtoh = CopyToHost;
  executor->memcpy_htod = CopyToDevice;
  executor->memcpy_dtod = CopyOnDevice;
  executor->sync_memcpy_dtoh = CopyToHostNow;
  executor->sync_memcpy_htod = CopyToDeviceNow;
  executor->sync_memcpy_dtod = CopyOnDeviceNow;
  executor->mem_zero = FillWithZeros;
  executor->memset = Fill;
  executor->memset32 = FillWithWords;
  executor->host_callback = HostCallback;
  TF_SetStatus(status, TF_OK, "");
}

}  // namespace
}  // namespace lockstep::standin

// TensorFlow calls it when it loads the plug-in. "type" makes its devices GPUs; the BFC allocator is CUDA's.
extern "C" __attribute__((visibility("default"))) void SE_InitPlugin(SE_PlatformRegistrationParams* parameters,
                                                                     TF_Status* status) {
  namespace standin = lockstep::standin;
  SP_Platform* const platform = parameters->platform;
  platform->struct_size = SP_PLATFORM_STRUCT_SIZE;
  platform->name = "LOCKSTEP_STANDIN";
  platform->type = "GPU";
  platform->supports_unified_memory = 0;
  platform->use_bfc_allocator = 1;
  platform->force_memory_growth = 1;
  SP_PlatformFns* const functions = parameters->platform_fns;
  functions->struct_size = SP_PLATFORM_FNS_STRUCT_SIZE;
  functions->get_device_count = standin::CountDevices;
  functions->create_device = standin::CreateDevice;
  functions->destroy_device = [](const SP_Platform*, SP_Device*) {};
  functions->create_device_fns = standin::CreateDeviceFunctions;
  functions->destroy_device_fns = [](const SP_Platform*, SP_DeviceFns*) {};
  functions->create_stream_executor = standin::CreateExecutor;
  functions->destroy_stream_executor = [](const SP_Platform*, SP_StreamExecutor*) {};
  functions->create_timer_fns = standin::CreateTimerFunctions;
  functions->destroy_timer_fns = [](const SP_Platform*, SP_TimerFns*) {};
  parameters->destroy_platform = [](SP_Platform*) {};
  parameters->destroy_platform_fns = [](SP_PlatformFns*) {};
  TF_SetStatus(status, TF_OK, "");
}

namespace lockstep::standin {

Work counters[kCounters];

namespace {

// Appends a line with the counts to the file LOCKSTEP_STANDIN_COUNTS when the process ends: for programs that a test
// starts as they are.
struct AtExit {
  ~AtExit() {
    const char* const path = std::getenv("LOCKSTEP_STANDIN_COUNTS");
    std::FILE* const file = path == nullptr ? nullptr : std::fopen(path, "a");
    if (file == nullptr) return;
    std::string line;
    for (const Work& work : counters) line += std::to_string(work.count) + " ";
    std::fprintf(file, "%s\n", line.c_str());
    std::fclose(file);
  }
} at_exit;

}  // namespace
}  // namespace lockstep::standin

// Returns a counter's count, or its bytes, for tests.
extern "C" __attribute__((visibility("default"))) long long lockstep_standin_count(int counter, int bytes) {
  const auto& work = lockstep::standin::counters[counter];
  return bytes ? work.bytes : work.count;
}
