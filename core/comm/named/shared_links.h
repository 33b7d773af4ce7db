#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/mutex.h"
#include "core/comm/named/control_links.h"
#include "core/comm/named/message_links.h"

namespace lockstep {

// The links of a lane, which carry messages of a guest as well: of the watch over collectives of devices, which has a
// thread of its own. A message of the guest has the byte named_messages::kOfGuest before it. Whichever user reads the
// links gives the other one its messages. Both learn that a link is closed.
// ```cpp
// SharedLinks links(control_links);
// for (const auto& event : links.Await(1.0)) ...;          // the lane's, on its driver
// for (const auto& event : links.guest().Await(0.0)) ...;  // the guest's, on another thread
// ```
class SharedLinks {
 public:
  using Event = MessageLinks::Event;

  // The links have to outlive this. Everything but Await and Look is used directly.
  explicit SharedLinks(ControlLinks& links) : links_(links), guest_(*this) {}

  // Returns the events for the lane, as ControlLinks::Await does. For one thread at a time.
  std::vector<Event> Await(std::optional<double> seconds);

  // The guest's share. Its Await without a limit sees a message when the lane reads it; the others read as well, unless
  // the lane does.
  MessageLinks& guest() { return guest_; }
  // Lets messages of the guest in. Before, they are the lane's, which cannot read them.
  void Admit() { is_admitted_ = true; }

 private:
  class Guest final : public MessageLinks {
   public:
    explicit Guest(SharedLinks& all) : all_(all) {}
    void Send(int rank, std::string_view message) override;
    std::vector<Event> Await(std::optional<double> seconds) override;
    bool Push(double seconds) override { return all_.links_.Push(seconds); }
    void Wake() override;

   private:
    SharedLinks& all_;
  };

  // Hands out what was read: returns the lane's events, and keeps the guest's.
  std::vector<Event> Sort(std::vector<Event> events);
  // Reads for the guest, unless the lane reads.
  void LookForGuest();

  ControlLinks& links_;
  Guest guest_;
  std::atomic<bool> is_admitted_{false};
  // Held while the links are read, also during the lane's wait. It is taken before mutex_.
  Mutex reading_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<Event> for_lane_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<Event> for_guest_ LOCKSTEP_GUARDED_BY(mutex_);
  bool guest_wakes_ LOCKSTEP_GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep
