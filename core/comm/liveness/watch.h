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

// Folder liveness/: who of a job is alive, how a process ends after a loss, and which ends its program has to hear of.

namespace lockstep {

struct WatchOptions {
  int rank = 0;
  int size = 1;
  Digest key = {};                       // of the meeting that made the connections: no one else can say anything here
  std::vector<std::string> places = {};  // [R], what messages call a rank: "rank 3 on host b (process 123)"
  // How long a rank may say nothing: shorter cuts of the network are survived. The same on all ranks, as is beat_s.
  double silence_s = 10;
  // How often each end of a connection says that it lives. What TCP sends again it sends after 0.2, 0.4, 0.8, 1.6, 3.2
  // and 6.4 s, so a cut of 5 s is one of up to 7 s here, and what lies between two beats comes on top of that.
  double beat_s = 0.25;
  // How long a rank that leaves waits until the others' machines have its farewell; one that is cut off never has it.
  double leave_s = 2;
  // Called like on_verdict and before it, for each rank that is lost, with why: it died, is silent or lies, or has
  // given up with an error. Not for CANCELLED, the end that a rank wants; but behind such a verdict too. May be null.
  std::function<void(const Status&)> on_loss = {};
};

// Who of a job's R ranks is alive, where the ranks lie on several hosts and no rank can look at another's process. Each
// rank has one watch with one thread. Rank 0 has a connection to each other rank and tells all what it sees or hears of
// one:
//
//            1        every beat_s, both ways:  "I live"
//            |        1 dies:  0 sees the connection end without a farewell, and tells 2 and 3
//       2 -- 0 -- 3   2 gives up:  tells 0 why, 0 tells 1 and 3
//                     0 dies:  1, 2 and 3 see it themselves
//
//   Watch watch({.rank = rank, .size = size, .key = meeting.key, .places = places}, std::move(meeting.connections),
//               [&](const Status& why) { EndAllWaits(why); }, [&] { EndLateWaits(); });
//   ...
//   watch.GiveUp(status);  // or
//   watch.Leave();
//
// The job's end is seen as
//   a connection that ends without a farewell   UNAVAILABLE "... died ..."            at once
//   nothing for silence_s                       UNAVAILABLE "... is silent for ..."   cut off, or frozen
//   the last words of a rank (GiveUp)           its code and text, with who said it   at once
//   what the rank at the other end did not say  DATA_LOSS                             forged, repeated or damaged
// The first of them that this rank learns is its verdict; there is one at most. What rank 0 sees, all learn in the same
// words, the rank that it is about too: one that was frozen and goes on hears that it was given up. What only another
// rank can see of rank 0 (its silence), that rank tells nobody but rank 0.
//
// A rank that leaves in good order ends nothing and is no longer watched. Where it is rank 0, the others go on without
// a watch: what they learn of each other's end then is no matter of this class.
//
// Time in which this process did not run (stopped, a laptop that slept) does not count as others' silence: it has heard
// nothing because it did not listen.
//
// To be made right after the meeting, as the time of silence begins to count. Every message carries a proof made of
// the meeting's key, its number, the connection and its direction (docs/wire_protocol.md). Costs some ten wake-ups of a
// thread each second.
//
// Thread-safe. The callbacks run on the watch's thread, without a lock, the first maybe before the constructor has
// returned; they may call everything but the destructor, and hold up the watch while they run: beats are late then. In
// a process forked from this one nothing is ever sent, calls do nothing, and the destructor only lets go.
class Watch {
 public:
  enum class Fate {
    kRunning,
    kLeft,
    kLost,  // died, cut off, silent, gave up
  };

  // connections: [R], as Meeting::connections has them. on_verdict: called once, when the job cannot go on, with what
  // verdict() returns from then on; not for this rank's own GiveUp, and not after Leave. on_tick: called at least every
  // 0.1 s, for the deadlines of others' waits. Either may be null. The first thing that is done is a beat.
  Watch(WatchOptions options, std::vector<UniqueFd> connections, std::function<void(const Status&)> on_verdict,
        std::function<void()> on_tick);
  // Leaves, then ends the thread.
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // This rank's last words, not OK: told to all, through rank 0, which become their verdict. Only the first counts, and
  // none after a verdict or Leave. Does not wait: the thread sends. Text beyond 2 KiB is cut off.
  void GiveUp(const Status& why);

  // Good order: tells all that this rank goes, and makes its connections' ends no verdict. Returns when the others'
  // machines have it (last words before it too), or 2 s have passed. Called from a callback it does not wait. `how` is
  // its farewell to them, of which what is beyond 2 KiB is cut off.
  void Leave(std::string_view how = {});

  // What is known of `rank`; of the own rank: kLost after GiveUp, or where the others have given it up.
  Fate fate(int rank) const;
  // The farewell message of a rank that has left; "" where it has not, or said nothing.
  std::string farewell(int rank) const;
  // OK while there is none.
  Status verdict() const;

  // Waits until there is a verdict, or fate(rank) is not kRunning, or nothing more will be known of it, at most
  // `seconds`. For who sees another connection to that rank end: the watch knows in a moment whether the rank died, and
  // a verdict says more than what GiveUp could. Called from a callback it does not wait.
  void AwaitFate(int rank, double seconds);

 private:
  class Impl;

  const ForkGuard guard_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
