#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>

#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/device/comm/peer_watch.h"
#include "core/device/comm/ticket.h"
#include "core/device/library.h"

namespace lockstep::device {

// Sees the calls of a DeviceCommunicator end: one thread, which sleeps while there are none. With a PeerWatch it also
// finds out why a call does not end. Thread-safe.
class Progress {
 public:
  // The functions of a backend that needs a watch, called by the thread.
  struct Hooks {
    std::unique_ptr<PeerWatch> watch;
    // Returns an error of the backend's library, while a call lasts. It is reported if the watch finds no better reason
    // in kPatience_s.
    std::function<Status()> look;
    // Called once with the reason why calls will not end; it has to call End. is_peers: a peer has said it.
    std::function<void(const Status& why, bool is_peers)> on_failure;
  };
  // How long an error of the backend's library waits for the watch, which knows the rank.
  static constexpr double kPatience_s = 3;
  // Without hooks the backend's own calls find lost ranks.
  Progress(const Library& library, int device, Hooks hooks);
  ~Progress() { Close(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Waits until all calls have ended, tells the peers that this rank leaves, and ends the thread. The hooks may run
  // meanwhile, so their owner keeps its pointer to this object until then.
  void Close();

  // Takes over a call whose events are in a stream.
  void Add(std::shared_ptr<PendingCall> call);
  // Ends all calls that have not ended, and later ones, with `why`: each when its device has come to its end, or after
  // kUnwind_s. Only the first error counts. Returns whether there were any.
  bool End(const Status& why);
  // While it is not empty, the thread looks for lost peers as for a call of this name: for the start.
  void set_connecting(std::string what);
  // Tells the peers how this rank ended. Null without a watch.
  PeerWatch* watch() { return hooks_.watch.get(); }
  // Tells the peers that this rank leaves; `how` is what those get that wait for it.
  void TellLeft(std::string_view how);
  // Returns whether the calling thread is this object's: it runs on_failure and the functions of tickets.
  bool IsOnThread() const { return std::this_thread::get_id() == thread_.get_id(); }

 private:
  // How long kernels of an ended communicator may take to return, before their callers get the error.
  static constexpr double kUnwind_s = 2;

  struct Entry {
    int64_t number;
    std::shared_ptr<PendingCall> call;
  };
  void Run();
  // Finishes the calls that have ended. Returns an error of the device.
  Status Collect();
  // Returns the oldest call, and the number of the last one whose data was ready.
  std::optional<PeerWatch::Waiting> Oldest(int64_t* reached);
  void Sleep(bool is_pending, const Deadline& since);
  // Returns the reason why the oldest call will not end, or OK.
  Status Judge(const std::optional<PeerWatch::Waiting>& waiting);

  const Library& library_;
  const int device_;
  const Hooks hooks_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<Entry> calls_ LOCKSTEP_GUARDED_BY(mutex_);
  int64_t num_calls_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  Status end_ LOCKSTEP_GUARDED_BY(mutex_);
  std::optional<Deadline> unwound_ LOCKSTEP_GUARDED_BY(mutex_);
  std::string farewell_ LOCKSTEP_GUARDED_BY(mutex_);
  std::string connecting_ LOCKSTEP_GUARDED_BY(mutex_);
  bool is_closing_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  // The thread's own.
  int64_t reached_ = 0;
  Status seen_;  // what `look` returned first, and until when it waits
  std::optional<Deadline> seen_until_;
  std::thread thread_;
};

}  // namespace lockstep::device
