#include "core/testing/emulator/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "core/base/free_ranges.h"

// Known to the address sanitizer only: a program without it has null here.
extern "C" [[gnu::weak]] void* __asan_region_is_poisoned(void* begin, size_t size);

namespace lockstep::emulator {
namespace {

constexpr int64_t kAlignment = 256;
constexpr int64_t kPage = 4096;

int64_t FromEnvironment(const char* name, int64_t otherwise) {
  const char* const text = std::getenv(name);
  if (text == nullptr) return otherwise;
  const int64_t value = std::atoll(text);
  if (value <= 0) {
    std::fprintf(stderr, "%s is '%s', wanted a number, 1 or more\n", name, text);
    std::abort();
  }
  return value;
}

int64_t RoundUp(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

// The memory of all devices. Device d has the addresses from d * DeviceBytes() on; without a range, from the heap.
class Memory {
 public:
  Memory() : used_(NumDevices()), uses_heap_(UsesHeap()) {
    if (uses_heap_) return;
    const int64_t device_bytes = RoundUp(DeviceBytes(), kPage);
    range_bytes_ = device_bytes * NumDevices();
    void* const range = ::mmap(nullptr, range_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) {
      std::perror("emulator: no address space for the memory of devices");
      std::abort();
    }
    range_ = static_cast<char*>(range);
    for (int d = 0; d < NumDevices(); ++d) free_.emplace_back(d * device_bytes, (d + 1) * device_bytes);
  }

  void Open() {
    const std::lock_guard lock(mutex_);
    if (num_open_++ == 0) Protect(PROT_READ | PROT_WRITE);
  }

  void Close() {
    const std::lock_guard lock(mutex_);
    if (--num_open_ == 0) Protect(PROT_NONE);
  }

  int64_t used(int device) {
    const std::lock_guard lock(mutex_);
    return used_[device];
  }

  void* Allocate(int device, int64_t bytes) {
    std::unique_lock lock(mutex_);
    if (bytes < 0 || bytes > DeviceBytes()) return nullptr;
    const int64_t taken = std::max(RoundUp(bytes, kAlignment), kAlignment);
    if (taken > DeviceBytes() - used_[device]) return nullptr;
    char* const memory = uses_heap_ ? FromHeap(bytes) : FromRange(free_[device], taken);
    if (memory == nullptr) return nullptr;
    used_[device] += taken;
    allocated_.emplace(memory, Allocation{device, bytes, taken});
    lock.unlock();
    Poison(memory, bytes, kNewByte);
    return memory;
  }

  bool Free(char* memory) {
    std::unique_lock lock(mutex_);
    const auto found = allocated_.find(memory);
    if (found == allocated_.end()) return false;
    const Allocation allocation = found->second;
    allocated_.erase(found);
    lock.unlock();
    Poison(memory, allocation.bytes, kFreedByte);
    lock.lock();
    used_[allocation.device] -= allocation.taken;
    if (uses_heap_) {
      std::free(memory);
    } else {
      free_[allocation.device].Return(memory - range_, allocation.taken);
    }
    return true;
  }

  int DeviceOf(const char* address) {
    const std::lock_guard lock(mutex_);
    auto after = allocated_.upper_bound(const_cast<char*>(address));
    if (after == allocated_.begin()) return -1;
    const auto& [memory, allocation] = *--after;
    return address < memory + std::max<int64_t>(allocation.bytes, 1) ? allocation.device : -1;
  }

 private:
  struct Allocation {
    int device;
    int64_t bytes, taken;
  };

  static char* FromHeap(int64_t bytes) {
    void* memory = nullptr;
    return ::posix_memalign(&memory, kAlignment, std::max<int64_t>(bytes, 1)) == 0 ? static_cast<char*>(memory)
                                                                                   : nullptr;
  }

  char* FromRange(FreeRanges& free, int64_t bytes) {
    const std::optional<int64_t> begin = free.Take(bytes);
    if (!begin) return nullptr;
    const int64_t end = RoundUp(*begin + bytes, kPage);
    if (end > used_range_bytes_) {
      if (num_open_ > 0) Change(range_ + used_range_bytes_, end - used_range_bytes_, PROT_READ | PROT_WRITE);
      used_range_bytes_ = end;
    }
    return range_ + *begin;
  }

  static void Poison(char* memory, int64_t bytes, unsigned char byte) {
    const MemoryAccess access;
    std::memset(memory, byte, std::min(bytes, kPoisonedBytes));
  }

  // The part of the range that was ever allocated.
  void Protect(int protection) {
    if (used_range_bytes_ > 0) Change(range_, used_range_bytes_, protection);
  }

  static void Change(char* begin, int64_t bytes, int protection) {
    if (::mprotect(begin, bytes, protection) == 0) return;
    std::perror("emulator: mprotect of the memory of devices");
    std::abort();
  }

  std::mutex mutex_;
  int num_open_ = 0;  // MemoryAccess
  std::map<char*, Allocation> allocated_;
  std::vector<int64_t> used_;  // [devices]
  const bool uses_heap_;
  char* range_ = nullptr;
  int64_t range_bytes_ = 0, used_range_bytes_ = 0;
  std::vector<FreeRanges> free_;  // [devices], offsets in the range
};

Memory& TheMemory() {
  static auto& memory = *new Memory();
  return memory;
}

}  // namespace

MemoryAccess::MemoryAccess() { TheMemory().Open(); }
MemoryAccess::~MemoryAccess() { TheMemory().Close(); }

bool UsesHeap() { return &__asan_region_is_poisoned != nullptr; }

int NumDevices() {
  static const int count = static_cast<int>(FromEnvironment("LOCKSTEP_EMULATED_DEVICES", 1));
  return count;
}

int64_t DeviceBytes() {
  static const int64_t bytes = FromEnvironment("LOCKSTEP_EMULATED_MEMORY_BYTES", int64_t{1} << 30);
  return bytes;
}

int64_t FreeBytes(int device) { return DeviceBytes() - TheMemory().used(device); }

void* AllocateOnDevice(int device, int64_t bytes) { return TheMemory().Allocate(device, bytes); }

bool FreeOnDevice(void* memory) { return TheMemory().Free(static_cast<char*>(memory)); }

int DeviceOf(const void* address) { return TheMemory().DeviceOf(static_cast<const char*>(address)); }

}  // namespace lockstep::emulator
