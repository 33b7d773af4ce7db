#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/device/library.h"

// Folder check/: checks of a device's library against the CPU's functions, for tests (over the emulator) and for the
// program device_check, which also measures kernels on a GPU.
namespace lockstep::device {

// A library with a stream, and the first error of all calls. After an error calls do nothing, so that checks need to
// look for one only at their end. Thread-compatible.
class Session {
 public:
  explicit Session(const Library& library);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  const Library& library() const { return library_; }
  Stream stream() const { return stream_; }
  const Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }

  // Keeps the error of a call. what: the function.
  void Note(Error error, const char* what);
  // Waits for all work.
  void Synchronize();

 private:
  const Library& library_;
  Stream stream_ = nullptr;
  Status status_;
};

// Memory of the device. It holds `offset` bytes more before its data, so that data can begin at an address that is
// aligned only for their type.
class DeviceMemory {
 public:
  DeviceMemory(Session& session, int64_t bytes, int64_t offset = 0);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  char* data() const { return memory_ == nullptr ? nullptr : static_cast<char*>(memory_) + offset_; }
  int64_t bytes() const { return bytes_; }

  // Copies and waits.
  void Set(const void* from);
  std::vector<char> Get() const;

 private:
  Session& session_;
  const int64_t bytes_, offset_;
  void* memory_ = nullptr;
};

}  // namespace lockstep::device
