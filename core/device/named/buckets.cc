#include "core/device/named/buckets.h"

#include <utility>

namespace lockstep::device {

Result<std::unique_ptr<Buckets::Bucket>> Buckets::Take(int64_t bytes, Stream stream) {
  std::unique_ptr<Bucket> bucket;
  {
    const MutexLock lock(mutex_);
    auto best = free_.end();
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      if ((*it)->bytes >= bytes && (best == free_.end() || (*it)->bytes < (*best)->bytes)) best = it;
    }
    if (best != free_.end()) {
      bucket = std::move(*best);
      free_.erase(best);
    }
  }
  if (bucket != nullptr) {
    for (size_t i = 0; i < bucket->used; ++i) {
      LOCKSTEP_RETURN_IF_ERROR(ToStatus(library_, library_.wait_event(stream, bucket->events[i]), "wait_event"));
    }
    return bucket;
  }
  bucket = std::make_unique<Bucket>(library_);
  bucket->bytes = kLeastBytes;
  while (bucket->bytes < bytes) bucket->bytes *= 2;
  if (allocate_ != nullptr) {
    LOCKSTEP_ASSIGN_OR_RETURN(bucket->memory, allocate_(bucket->bytes));
    return bucket;
  }
  void* memory = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(ToStatus(library_, library_.allocate(bucket->bytes, &memory), "allocate"));
  bucket->memory = std::shared_ptr<void>(memory, [&library = library_](void* old) { (void)library.deallocate(old); });
  return bucket;
}

Status Buckets::Return(std::unique_ptr<Bucket> bucket, const std::vector<Stream>& streams) {
  Status status;
  bucket->used = 0;
  for (const Stream stream : streams) {
    if (bucket->used == bucket->events.size()) {
      Event event = nullptr;
      status = ToStatus(library_, library_.create_event(false, &event), "create_event");
      if (!status.ok()) break;
      bucket->events.push_back(event);
    }
    status = ToStatus(library_, library_.record_event(bucket->events[bucket->used++], stream), "record_event");
    if (!status.ok()) break;
  }
  const MutexLock lock(mutex_);
  free_.push_back(std::move(bucket));
  return status;
}

}  // namespace lockstep::device
