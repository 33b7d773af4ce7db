#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/device/library.h"

namespace lockstep::device {

// A call that was put into a stream, as its backend and the thread of progress.h know it. Thread-safe.
class PendingCall {
 public:
  // operation: "allreduce 'grad'", for messages. Creates the events.
  static Result<std::shared_ptr<PendingCall>> Create(const Library& library, std::string operation);
  ~PendingCall();
  PendingCall(const PendingCall&) = delete;
  PendingCall& operator=(const PendingCall&) = delete;

  const std::string& operation() const { return operation_; }
  // The points at which the data of this rank was ready, and at which the call has ended on this rank.
  Event begun() const { return begun_; }
  Event ended() const { return ended_; }

  // Notes an error of the call itself, before its end. The first one stays.
  void Fail(const Status& why);
  // Ends the call with the noted error, or else with `status`: calls the functions of Then, and then ends all waits.
  // Only the first end counts.
  void Finish(const Status& status);
  // Keeps `memory` until the call has ended.
  void Keep(std::shared_ptr<void> memory);

  bool is_over() const;
  // Returns the status at the end; OK before.
  Status status() const;
  Status Wait() const;
  void Then(std::function<void(const Status&)> function);

 private:
  PendingCall(const Library& library, std::string operation) : library_(library), operation_(std::move(operation)) {}

  const Library& library_;
  const std::string operation_;
  Event begun_ = nullptr, ended_ = nullptr;
  mutable Mutex mutex_;
  mutable CondVar changed_;
  bool is_ending_ LOCKSTEP_GUARDED_BY(mutex_) = false;  // the status is known
  bool is_over_ LOCKSTEP_GUARDED_BY(mutex_) = false;    // and everybody has got it
  Status status_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<void>> kept_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<std::function<void(const Status&)>> then_ LOCKSTEP_GUARDED_BY(mutex_);
};

// A collective that was put into a stream of a DeviceCommunicator. A value, which any number of owners may copy; it may
// outlive the communicator. Thread-safe.
class Ticket {
 public:
  Ticket(const Library& library, std::shared_ptr<PendingCall> call) : library_(&library), call_(std::move(call)) {}

  // Lets work that is put into `stream` from now on run after the call. Does not wait. If the call fails, that work
  // runs as well, on undefined data.
  Status LetWait(Stream stream) const {
    return ToStatus(*library_, library_->wait_event(stream, call_->ended()), "wait_event");
  }
  // Returns whether the call has ended, well or not. A call on a device ends some 50 us before this shows it.
  bool has_passed() const { return call_->is_over(); }
  // Returns the error of a call that has ended; OK before.
  Status status() const { return call_->status(); }
  // Waits for the end, and returns its status. It is for tests and for the end of a program: steps use LetWait or Then.
  Status Wait() const { return call_->Wait(); }
  // Calls `function` once at the end of the call: on a thread of the communicator, or at once if it has ended. It must
  // not wait, and must not destroy the communicator.
  void Then(std::function<void(const Status&)> function) const { call_->Then(std::move(function)); }

 private:
  const Library* library_;
  std::shared_ptr<PendingCall> call_;
};

}  // namespace lockstep::device
