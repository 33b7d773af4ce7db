#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/fork_guard.h"
#include "core/base/seal.h"
#include "core/base/sha256.h"
#include "core/base/status.h"
#include "core/comm/gloo/introductions.h"

namespace lockstep {
class LaneCounters;  // core/telemetry/lane_counters.h
}

namespace lockstep::gloo {

class Memory;

// The ranks of the streams and their names.
struct StreamsOptions {
  int index = 0;           // index of this rank among them
  std::vector<int> ranks;  // [n]: their numbers in the job, for messages
  std::string address;     // numeric address of this machine at which the others reach it
  double stall_timeout_s;  // how long a peer may be late
};

// Transfers whole messages and large memory between the ranks of a group, with one Gloo connection for each pair. Only
// this class and pair.h use Gloo; all other code sees bytes and Status.
// ```cpp
// LOCKSTEP_ASSIGN_OR_RETURN(auto streams, Streams::Listen(options));
// ... tell streams->address() to the peers, learn theirs ...
// LOCKSTEP_RETURN_IF_ERROR(streams->Connect(addresses, key, deadline));
//
// std::memcpy(streams->Outgoing(peer), ...);  streams->Send(peer, bytes);      // a message
// LOCKSTEP_ASSIGN_OR_RETURN(std::string_view message, streams->Await(peer));  ...  streams->Release(peer);
//
// streams->Post(peer, memory, bytes);  ...  streams->AwaitPosted(peer);        // memory, without a copy
// streams->SendFrom(peer, memory, bytes);  ...  streams->AwaitSent(peer);
// ```
// Gloo sends only after the receiver has declared itself ready. Two windows for messages of each peer are always ready,
// so a message of up to kWindowBytes needs one message delay and no answer. Larger data goes from memory to memory: one
// delay for the receiver's notice and one for the data. This costs nothing if the message before it takes as long to
// send. The messages of a pair arrive in order, and its memory arrives in order. Between the two, any order is
// possible.
//
// Peers are authenticated before Gloo has the connection (introductions.h). Each message is sealed (core/base/seal.h):
// one that was changed in its first kCoveredBytes, repeated, left out or sent by others ends the streams with
// DATA_LOSS. Later bytes and memory carry no proof; docs/security.md describes the consequences.
//
// A wait ends with an error if the peer's connection ends, if it lasts longer than stall_timeout_s (Tick has to be
// called meanwhile), or by Break. After an error all calls return that first one. Data that arrived before the error is
// not lost: a wait for it still succeeds, unless the error was known first.
//
// Threads: one at a time, except that any thread may call Break, Tick and broken() at any time. Memory of Post and
// SendFrom has to stay until it was awaited, or Forget has been called. In a process forked from this one no method may
// be called; the destructor frees nothing there.
class Streams {
 public:
  // The size of a message window. It is small enough that two windows for each of many peers do not matter. It is large
  // enough that the receiver's notice for memory arrives before a window is sent (0.4 ms at 10 Gbit/s; a notice takes
  // 0.05 to 0.3 ms).
  static constexpr int64_t kWindowBytes = int64_t{512} << 10;

  // Returns the seal of the messages from one rank to another. It covers a message's first kCoveredBytes: a tag of
  // 512 KiB would take as long as sending them.
  static Seal SealOf(const Digest& key, int from, int to) { return {key, "stream", from, to, kCoveredBytes}; }
  static constexpr uint64_t kCoveredBytes = uint64_t{64} << 10;

  // Opens a port. UNAVAILABLE if it cannot listen at the address.
  static Result<std::unique_ptr<Streams>> Listen(StreamsOptions options);
  ~Streams();
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  // Returns the address by which peers reach this rank.
  const std::string& address() const { return introductions_.address(); }

  // Connects and authenticates all pairs. theirs: the peers' addresses, [n]; this rank's own is not used. Returns the
  // errors of Introductions::Connect, UNAVAILABLE if a connection ends, and the error of Break.
  Status Connect(const std::vector<std::string>& theirs, const Digest& key, const Deadline& deadline);

  // Counts messages and memory that are sent in `counters`, which has to outlive this object, and memory that arrives.
  // Messages that arrive are counted by their reader, who knows their sizes (calls.h).
  void CountMessages(LaneCounters* counters) { counters_ = counters; }

  int index() const { return options_.index; }
  int size() const { return static_cast<int>(options_.ranks.size()); }
  const std::vector<int>& ranks() const { return options_.ranks; }

  // Sets the operation of the following waits, for their errors; the names have to outlive them.
  void SetOperation(std::string_view kind, std::string_view name) {
    kind_ = kind;
    name_ = name;
  }

  // Returns memory for the next message to a peer, [kWindowBytes]. Waits until the message before the last has left.
  Result<char*> Outgoing(int peer);
  // Sends the first `bytes` of Outgoing's memory.
  Status Send(int peer, int64_t bytes);
  // Returns the next message of a peer, of the sent size; valid until it is released. At most two are held.
  Result<std::string_view> Await(int peer);
  // Releases the oldest message that is held, so that the peer can send another.
  void Release(int peer);

  // Prepares memory for a SendFrom of the peer. The calls on both sides match in order and length.
  Status Post(int peer, void* data, int64_t bytes);
  // Waits until the oldest posted memory is filled.
  Status AwaitPosted(int peer);
  Status SendFrom(int peer, const void* data, int64_t bytes);
  // Waits until the oldest memory of SendFrom may be changed.
  Status AwaitSent(int peer);

  // After an error: releases all memory of Post and SendFrom, so that no thread touches it any more. Returns error().
  Status Forget();
  // Before the end: waits until the peers' machines have received everything, at most `seconds`.
  Status Flush(double seconds);

  // Ends all waits with `error`, which all later calls return; a second error has no effect. Returns the first error.
  Status Break(const Status& error);
  bool broken() const;
  Status error() const;
  // Ends a wait whose time has passed. Call it some times per second while other threads may wait.
  void Tick();

  // Called when a connection ends. Returns what is known about that rank (its farewell message, its error), or OK if
  // nothing is known. It may wait for one second.
  std::function<Status(int rank)> ask_fate;

  // Returns "allreduce 'x'".
  std::string Operation() const;

 private:
  struct Peer;
  class Waiting;

  Streams(StreamsOptions options, Introductions introductions);
  Status StartEngine();
  Status OpenWindows(int peer);
  std::unique_ptr<Memory> MakeBuffer(void* data, int64_t bytes);
  // Waits for a buffer that was passed to recv or to send.
  Status Wait(Memory& buffer, bool for_send, int peer, double timeout_s);
  // Runs calls that may throw one of Gloo's exceptions.
  template <typename Work>
  Status Guarded(int peer, const Work& work);
  // Returns the reason why the connection to a peer has ended; if no other is known, it is Gloo's text.
  Status Lost(int peer, const std::string& words);

  const ForkGuard fork_;
  const StreamsOptions options_;
  Introductions introductions_;
  struct Engine;  // Gloo's device and context
  std::unique_ptr<Engine> engine_;
  std::vector<std::unique_ptr<Peer>> peers_;  // [n], null for the rank itself
  std::string_view kind_ = "start";
  std::string_view name_;
  LaneCounters* counters_ = nullptr;
  std::unique_ptr<Waiting> waiting_;
};

}  // namespace lockstep::gloo
