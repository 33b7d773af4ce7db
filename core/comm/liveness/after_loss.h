#pragma once

#include <atomic>
#include <optional>
#include <string>

#include "core/base/deadline.h"
#include "core/base/status.h"

namespace lockstep {

// Ends the process of a rank that does not notice the loss of another one: a program that computes, writes or waits for
// long, outside of collectives, would continue in vain.
// ```cpp
// AfterLoss after_loss(5, "rank 0 (process 12 on host a)");
// after_loss.Begin();                   // the program has its communicator
// watch: after_loss.Lost(why);          // another rank died
// watch: after_loss.Tick();             // many times; 5 s later the process has ended
// ```
// A program that got the error of a collective may have caught it, and decides itself: it is not ended, even if others
// are lost. This is known for the whole process, which may have several communicators that see the same death. A
// program that has left the job is not ended either. If ranks are threads of one process, the first one to end it ends
// them all.
//
// One thread calls Lost and Tick; any thread calls the others.
class AfterLoss {
 public:
  // seconds: the time from the loss to the end; no value: the process is never ended. who: this rank's name in
  // messages.
  AfterLoss(std::optional<double> seconds, std::string who) : seconds_(seconds), who_(std::move(who)) {}
  AfterLoss(const AfterLoss&) = delete;
  AfterLoss& operator=(const AfterLoss&) = delete;

  // Nothing is ended before Begin (a failed rendezvous is reported to the program) or after Leave.
  void Begin() { runs_ = true; }
  void Leave() { runs_ = false; }

  // Records that the program has got an error that tells why its collectives are over.
  static void ProgramKnows();

  // Records a loss; only the first one counts.
  void Lost(const Status& why);
  // After the time has passed, writes the reason to stderr, if that is possible, and ends the process with exit code 1,
  // at once: without exit handlers, which might wait for a peer.
  void Tick();

 private:
  const std::optional<double> seconds_;
  const std::string who_;
  std::atomic<bool> runs_ = false;
  std::optional<Deadline> end_;
  Status why_;
};

}  // namespace lockstep
