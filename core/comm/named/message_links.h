#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace lockstep {

// Messages between ranks outside of collectives: links of their own (control_links.h), or a share of a lane's
// (shared_links.h). Send and Wake are for any thread, the others for one thread.
class MessageLinks {
 public:
  virtual ~MessageLinks() = default;

  // Sends the message, now or later, without waiting. Does nothing without a link, or if it is closed.
  virtual void Send(int rank, std::string_view message) = 0;

  struct Event {
    int rank;
    std::string message;
    bool closed = false;  // the peer has closed, died, or broken the rules: nothing more comes from it
    Status why = {};      // if it is closed: the rule that was broken
  };
  // Returns the events that have arrived. If there are none, waits for a peer, for Wake, or for `seconds`; no value:
  // without a limit. Each rank is reported as closed only once.
  virtual std::vector<Event> Await(std::optional<double> seconds) = 0;

  // Sends what the peers could not take before, for at most `seconds`. Returns whether everything was sent.
  virtual bool Push(double seconds) = 0;

  // Ends the current Await, or the next one.
  virtual void Wake() = 0;
};

}  // namespace lockstep
