#include "core/device/check/session.h"

namespace lockstep::device {

Session::Session(const Library& library) : library_(library) { Note(library.create_stream(&stream_), "create_stream"); }

Session::~Session() {
  Synchronize();
  if (stream_ != nullptr) (void)library_.destroy_stream(stream_);  // the process ends soon
}

void Session::Note(Error error, const char* what) {
  if (status_.ok()) status_ = ToStatus(library_, error, what);
}

void Session::Synchronize() {
  if (stream_ != nullptr) Note(library_.synchronize_stream(stream_), "synchronize_stream");
}

DeviceMemory::DeviceMemory(Session& session, int64_t bytes, int64_t offset)
    : session_(session), bytes_(bytes), offset_(offset) {
  if (bytes + offset > 0) session.Note(session.library().allocate(bytes + offset, &memory_), "allocate");
}

DeviceMemory::~DeviceMemory() {
  if (memory_ != nullptr) session_.Note(session_.library().deallocate(memory_), "deallocate");
}

void DeviceMemory::Set(const void* from) {
  if (!session_.ok() || bytes_ == 0) return;
  session_.Note(session_.library().copy(session_.stream(), data(), from, bytes_), "copy");
  session_.Synchronize();
}

std::vector<char> DeviceMemory::Get() const {
  std::vector<char> bytes(bytes_);
  if (!session_.ok() || bytes_ == 0) return bytes;
  session_.Note(session_.library().copy(session_.stream(), bytes.data(), data(), bytes_), "copy");
  session_.Synchronize();
  return bytes;
}

}  // namespace lockstep::device
