#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/fork_guard.h"
#include "core/base/sha256.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"

// Folder liveness/: detection of lost ranks, the end of a process after a loss, and a record of ends caused by peers.

namespace lockstep {

struct WatchOptions {
  int rank = 0;
  int size = 1;
  Digest key = {};                       // of the rendezvous that made the connections; it authenticates messages
  std::vector<std::string> places = {};  // [R], the ranks' names in messages: "rank 3 on host b (process 123)"
  // How long a rank may be silent: shorter network failures are survived. The same on all ranks, as is beat_s.
  double silence_s = 10;
  // The interval at which each end of a connection sends a beat. TCP repeats lost data after 0.2, 0.4, 0.8, 1.6, 3.2
  // and 6.4 s. So a network failure of 5 s looks here like one of up to 7 s, plus the time between two beats.
  double beat_s = 0.25;
  // How long a leaving rank waits until the others' machines have its farewell; a machine that is cut off never gets
  // it.
  double leave_s = 2;
  // Called like on_verdict and before it, for each rank that is lost, with the reason: it died, is silent, sent invalid
  // messages, or has given up with an error. Not called for CANCELLED, an intended end; but also called after such a
  // verdict. May be null.
  std::function<void(const Status&)> on_loss = {};
};

// Detects which of a job's R ranks are lost, if the ranks are on several hosts and no rank can see another's process.
// Each rank has one watch with one thread. Rank 0 has a connection to each other rank and tells all what it learns of
// any rank:
//
//            1        every beat_s, both ways: a beat
//            |        1 dies:  0 sees the connection end without a farewell, and tells 2 and 3
//       2 -- 0 -- 3   2 gives up:  tells 0 the reason, 0 tells 1 and 3
//                     0 dies:  1, 2 and 3 see it themselves
//
//   Watch watch({.rank = rank, .size = size, .key = rendezvous.key, .places = places},
//               std::move(rendezvous.connections),
//               [&](const Status& why) { EndAllWaits(why); }, [&] { EndLateWaits(); });
//   ...
//   watch.ReportError(status);  // or
//   watch.Leave();
//
// The events that end the job:
//
//   a connection that ends without a farewell   UNAVAILABLE "... died ..."            at once
//   nothing for silence_s                       UNAVAILABLE "... has been silent ..."   cut off, or frozen
//   a rank's error message (ReportError)        its code and text, with its name      at once
//   data that the other end did not send        DATA_LOSS                             forged, repeated or damaged
// The first event that this rank learns is its verdict; there is at most one. All ranks learn rank 0's observations
// with the same text, including the rank that it is about: a rank that was frozen and resumes learns that it was given
// up. If another rank observes the silence of rank 0, it tells only rank 0.
//
// A rank that leaves in good order ends nothing and is no longer watched. If it is rank 0, the others continue without
// a watch; this class then no longer detects their ends.
//
// Time in which this process did not run (stopped, a laptop that slept) does not count as others' silence: it has
// received nothing because it did not listen.
//
// Make it right after the rendezvous, because the time of silence begins to count. Every message carries a proof made
// of the rendezvous' key, its number, the connection and its direction (docs/wire_protocol.md). It costs about ten
// wake-ups of a thread per second.
//
// Thread-safe. The callbacks run on the watch's thread, without a lock, the first possibly before the constructor has
// returned. They may call everything except the destructor. While they run, the watch is delayed, and its beats are
// late. In a process forked from this one nothing is ever sent, calls do nothing, and the destructor frees nothing.
class Watch {
 public:
  enum class Fate {
    kRunning,
    kLeft,
    kLost,  // died, cut off, silent, or gave up
  };

  // `connections`: [R], as in `RendezvousResult::connections`. `on_verdict`: called once, when the job cannot continue,
  // with the result of verdict() from then on. It is not called for this rank's own ReportError, and not after Leave.
  // `on_tick`: called at least every 0.1 s, for deadlines of other waits. Either may be null. The first action is a
  // beat.
  Watch(WatchOptions options, std::vector<UniqueFd> connections, std::function<void(const Status&)> on_verdict,
        std::function<void()> on_tick);
  // Leaves, then ends the thread.
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // Tells all ranks, through rank 0, this rank's error (not OK), which becomes their verdict. Only the first call has
  // an effect, and none after a verdict or Leave. Does not wait: the thread sends. Text beyond 2 KiB is cut off.
  void ReportError(const Status& why);

  // Leaves in good order: tells all that this rank leaves, so that the ends of its connections cause no verdict.
  // Returns when the others' machines have the message (and an earlier ReportError too), or after 2 s. From a callback
  // it does not wait. `how` is its farewell message; text beyond 2 KiB is cut off.
  void Leave(std::string_view how = {});

  // Returns the fate of `rank`. For this rank: kLost after ReportError, or if the others have given it up.
  Fate fate(int rank) const;
  // Returns the farewell message of a rank that has left; "" if it has not, or sent none.
  std::string farewell(int rank) const;
  // Returns the verdict; OK while there is none.
  Status verdict() const;

  // Waits until there is a verdict, fate(rank) is not kRunning, or nothing more will be known of it, at most `seconds`.
  // It is for code that sees another connection to that rank end: the watch soon knows whether the rank died, and a
  // verdict tells more than ReportError could. From a callback it does not wait.
  void AwaitFate(int rank, double seconds);

 private:
  class Impl;

  const ForkGuard guard_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
