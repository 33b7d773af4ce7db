#pragma once

#include <unistd.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/comm/named/named_plan.h"
#include "core/comm/named/test_lane.h"
#include "core/comm/options.h"
#include "core/device/library.h"
#include "core/device/named/named_exchange_on_device.h"
#include "core/testing/standin_nccl_file.h"

extern "C" const lockstep::device::Library* lockstep_device_library();

// Named lanes with emulated devices and the stand-in NCCL, for tests.
namespace lockstep::device {

// Returns the options of a rank's device. Ranks that are threads share the emulated device.
inline NamedExchangeOptions EmulatedExchange(const ContextOptions& context) {
  NamedExchangeOptions options;
  options.devices.library = lockstep_device_library();
  options.devices.backend = context.device;
  options.devices.nccl.file = testing::StandinNcclFile();
  options.devices.nccl.system = false;
  options.devices.stall_timeout_s = context.stall_timeout_s;
  options.devices.start_timeout_s = context.rendezvous_timeout_s;
  return options;
}

// Memory of the device by its size, and streams, which tests take and give back. Memory is never freed: that would wait
// for the devices of other ranks. A fork of the process has none of its streams.
class TakenBefore {
 public:
  static TakenBefore& OfThisProcess() {
    static auto& all = *new TakenBefore();
    return all;
  }
  void* Memory(int64_t bytes) {
    const MutexLock lock(mutex_);
    if (const auto found = memory_.find(bytes); found != memory_.end()) {
      void* const memory = found->second;
      memory_.erase(found);
      return memory;
    }
    void* memory = nullptr;
    EXPECT_EQ(lockstep_device_library()->allocate(bytes, &memory), kSuccess);
    return memory;
  }
  void Return(int64_t bytes, void* memory) {
    const MutexLock lock(mutex_);
    memory_.emplace(bytes, memory);
  }
  Stream AStream() {
    const MutexLock lock(mutex_);
    std::vector<Stream>& own = streams_[getpid()];
    Stream stream = nullptr;
    if (own.empty()) {
      EXPECT_EQ(lockstep_device_library()->create_stream(&stream), kSuccess);
    } else {
      stream = own.back();
      own.pop_back();
    }
    return stream;
  }
  void Return(pid_t process, Stream stream) {
    const MutexLock lock(mutex_);
    streams_[process].push_back(stream);
  }
  // Ends the streams that were given back, and so their threads.
  void EndStreams() {
    const MutexLock lock(mutex_);
    for (const Stream stream : std::exchange(streams_[getpid()], {})) {
      EXPECT_EQ(lockstep_device_library()->destroy_stream(stream), kSuccess);
    }
  }

 private:
  Mutex mutex_;
  std::multimap<int64_t, void*> memory_ LOCKSTEP_GUARDED_BY(mutex_);
  std::map<pid_t, std::vector<Stream>> streams_ LOCKSTEP_GUARDED_BY(mutex_);
};

// Memory of the device for a tensor.
class TensorMemory {
 public:
  explicit TensorMemory(int64_t bytes) {
    while (bytes_ < bytes) bytes_ *= 2;
    data_ = TakenBefore::OfThisProcess().Memory(bytes_);
  }
  ~TensorMemory() { TakenBefore::OfThisProcess().Return(bytes_, data_); }
  TensorMemory(const TensorMemory&) = delete;
  TensorMemory& operator=(const TensorMemory&) = delete;
  void* data() const { return data_; }

 private:
  int64_t bytes_ = 256;
  void* data_ = nullptr;
};

// The stream of a thread that makes requests: its compute stream.
class ComputeStream {
 public:
  static const std::shared_ptr<ComputeStream>& OfThisThread() {
    static thread_local auto stream = std::make_shared<ComputeStream>();
    return stream;
  }
  ComputeStream() : process_(getpid()), stream_(TakenBefore::OfThisProcess().AStream()) {}
  ~ComputeStream() {
    if (getpid() == process_) TakenBefore::OfThisProcess().Return(process_, stream_);
  }
  ComputeStream(const ComputeStream&) = delete;
  ComputeStream& operator=(const ComputeStream&) = delete;
  Stream get() const { return stream_; }

 private:
  const pid_t process_;
  const Stream stream_;
};

// Puts the tensor of a work on the device, by a copy in the caller's stream that nobody waits for, and copies the
// result back when the request has ended. Nothing but the lane keeps the order, so a wait that is missing gives wrong
// results.
inline void PlaceOnDevice(NamedWork& work) {
  struct Tensors {
    std::shared_ptr<ComputeStream> compute;
    std::unique_ptr<TensorMemory> in, out;
    void* to = nullptr;
    int64_t out_bytes = 0;
  };
  const Library& library = *lockstep_device_library();
  const auto tensors = std::make_shared<Tensors>();
  tensors->compute = ComputeStream::OfThisThread();
  const int64_t bytes = BytesOf(work.request);
  tensors->in = std::make_unique<TensorMemory>(bytes);
  if (bytes > 0) {
    EXPECT_EQ(library.copy(tensors->compute->get(), tensors->in->data(), work.in, bytes), kSuccess);
  }
  work.in = tensors->in->data();
  work.stream = tensors->compute->get();
  work.request.on_device = true;
  work.allocate = [tensors, on_host = work.allocate,
                   size = DTypeSize(work.request.dtype)](std::span<const int64_t> shape) -> Result<void*> {
    LOCKSTEP_ASSIGN_OR_RETURN(tensors->to, on_host(shape));
    tensors->out_bytes = std::accumulate(shape.begin(), shape.end(), size, std::multiplies<>());
    tensors->out = std::make_unique<TensorMemory>(tensors->out_bytes);
    return tensors->out->data();
  };
  work.done = [tensors, &library, done = work.done](const Status& status, const NamedWork::Outcome& outcome) {
    const Stream compute = tensors->compute->get();
    if (status.ok() && tensors->out_bytes > 0) {
      EXPECT_EQ(library.copy(compute, tensors->to, tensors->out->data(), tensors->out_bytes), kSuccess);
    }
    EXPECT_EQ(library.synchronize_stream(compute), kSuccess);
    done(status, outcome);
  };
}

}  // namespace lockstep::device
