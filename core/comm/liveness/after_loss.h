#pragma once

#include <atomic>
#include <optional>
#include <string>

#include "core/base/deadline.h"
#include "core/base/status.h"

namespace lockstep {

// Ends the process of a rank that the loss of another one does not reach: a program that computes, writes or waits by
// itself for long, in no collective, would go on for nobody.
//
//   AfterLoss after_loss(5, "rank 0 (process 12 on host a)");
//   after_loss.Begin();                   // the program has its communicator
//   watch: after_loss.Lost(why);          // another rank died
//   watch: after_loss.Tick();             // many times; 5 s later the process is no more
//
// A program that was told, by the error of a collective, may have caught it, and does what it will: it is not ended,
// whatever else is lost. That is known of the whole process, which may have several communicators that hear of one
// death. Nor is one that has left the job. Where ranks are threads of one process, one ends them all.
//
// Lost and Tick are for one thread, the others for any.
class AfterLoss {
 public:
  // seconds: from the loss to the end; 0: never. who: this rank, as messages call it.
  AfterLoss(double seconds, std::string who) : seconds_(seconds), who_(std::move(who)) {}
  AfterLoss(const AfterLoss&) = delete;
  AfterLoss& operator=(const AfterLoss&) = delete;

  // Ends nothing before Begin (a meeting that fails is told to the program), nor after Leave.
  void Begin() { runs_ = true; }
  void Leave() { runs_ = false; }

  // What the program was told of it is enough: an error that says why its collectives are over.
  static void ProgramKnows();

  // The first counts.
  void Lost(const Status& why);
  // Where the time is over, says why on stderr, if that takes it, and ends the process with exit code 1, at once: no
  // exit handlers, which might wait for a peer.
  void Tick();

 private:
  const double seconds_;
  const std::string who_;
  std::atomic<bool> runs_ = false;
  std::optional<Deadline> end_;
  Status why_;
};

}  // namespace lockstep
