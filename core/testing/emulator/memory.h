#pragma once

#include <cstdint>

// The memory of emulated devices.
//
// It lies in one range of addresses, which no code can access outside of work of a stream. A host that follows a
// device's pointer ends with SIGSEGV, as it would with a real device. In programs with the address sanitizer the memory
// comes from the heap instead. So the sanitizer sees the ends of each allocation, and its use after it was freed.
//
// New and freed memory is filled with poison. Thread-safe.
namespace lockstep::emulator {

// While one of these lives, the memory is accessible to the whole process.
class MemoryAccess {
 public:
  MemoryAccess();
  ~MemoryAccess();
  MemoryAccess(const MemoryAccess&) = delete;
  MemoryAccess& operator=(const MemoryAccess&) = delete;
};

// The byte that new memory is filled with, and the byte of freed memory, up to kPoisonedBytes of an allocation. More
// would make the machine give memory for what tests only reserve.
inline constexpr unsigned char kNewByte = 0xa5, kFreedByte = 0xdd;
inline constexpr int64_t kPoisonedBytes = int64_t{1} << 20;

// Returns whether memory comes from the heap: this program runs with the address sanitizer.
bool UsesHeap();

// Returns the number of devices: LOCKSTEP_EMULATED_DEVICES, or 1.
int NumDevices();

// Returns the bytes of each device: LOCKSTEP_EMULATED_MEMORY_BYTES, or 1 GiB.
int64_t DeviceBytes();

// Returns the bytes of the device that are not allocated.
int64_t FreeBytes(int device);

// Returns memory of the device, aligned to 256 bytes, or null if it has not enough.
void* AllocateOnDevice(int device, int64_t bytes);

// Frees memory. Returns false if it was not allocated.
bool FreeOnDevice(void* memory);

// Returns the device in whose memory the address lies, or -1 for an address of the host.
int DeviceOf(const void* address);

}  // namespace lockstep::emulator
