#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/device/library.h"

namespace lockstep::device {

// Memory of a device for the tensors of a batch. It is used again, without waiting for the device: the next user's
// stream waits for the last user's work. At the end, work of callers may still use it: the library waits for that when
// it frees memory, and other allocators keep the order of streams. Thread-safe.
class Buckets {
 public:
  struct Bucket {
    explicit Bucket(const Library& of) : library(of) {}
    ~Bucket() {
      for (const Event event : events) (void)library.destroy_event(event);
    }
    Bucket(const Bucket&) = delete;
    Bucket& operator=(const Bucket&) = delete;
    const Library& library;
    std::shared_ptr<void> memory;
    int64_t bytes = 0;
    std::vector<Event> events;  // points in the streams that use it last: the first `used` ones
    size_t used = 0;
    char* data() const { return static_cast<char*>(memory.get()); }
  };

  // allocate: returns memory of the device; null: the library's is used.
  Buckets(const Library& library, std::function<Result<std::shared_ptr<void>>(int64_t bytes)> allocate)
      : library_(library), allocate_(std::move(allocate)) {}

  // Returns at least `bytes` bytes, for work that is put into `stream`. RESOURCE_EXHAUSTED without memory.
  Result<std::unique_ptr<Bucket>> Take(int64_t bytes, Stream stream);
  // Gives it back. Work that is in these streams now may still use it. An error comes from the device.
  Status Return(std::unique_ptr<Bucket> bucket, const std::vector<Stream>& streams);

 private:
  // The smallest one is 1 MiB. Sizes are powers of two, so that batches of similar sizes share memory.
  static constexpr int64_t kLeastBytes = int64_t{1} << 20;

  const Library& library_;
  const std::function<Result<std::shared_ptr<void>>(int64_t bytes)> allocate_;
  Mutex mutex_;
  std::vector<std::unique_ptr<Bucket>> free_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::device
