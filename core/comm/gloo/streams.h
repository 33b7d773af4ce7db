#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/fork_guard.h"
#include "core/base/sha256.h"
#include "core/base/status.h"
#include "core/comm/gloo/introductions.h"

namespace lockstep::gloo {

class Memory;

// Between which ranks streams are, and how they are called.
struct StreamsOptions {
  int index = 0;           // of this rank among them
  std::vector<int> ranks;  // [n]: their numbers in the job, for messages
  std::string address;     // numeric, of this machine: where the others reach it
  double stall_timeout_s;  // how long a peer may be late
};

// Whole messages and large memory between the ranks of a group, one Gloo connection for each pair. This and pair.h are
// the only places that know Gloo: everybody else sees bytes and Status.
//
//   LOCKSTEP_ASSIGN_OR_RETURN(auto streams, Streams::Listen(options));
//   ... tell streams->address() to the peers, learn theirs ...
//   LOCKSTEP_RETURN_IF_ERROR(streams->Connect(addresses, key, deadline));
//
//   std::memcpy(streams->Outgoing(peer), ...);  streams->Send(peer, bytes);      // a message
//   LOCKSTEP_ASSIGN_OR_RETURN(const char* message, streams->Await(peer));  ...  streams->Release(peer);
//
//   streams->Post(peer, memory, bytes);  ...  streams->AwaitPosted(peer);        // memory, without a copy
//   streams->SendFrom(peer, memory, bytes);  ...  streams->AwaitSent(peer);
//
// Gloo sends where the receiver has said that it is ready, and not before. Two windows for messages of each peer are
// always ready, so that a message takes one way and no answer: kWindowBytes of it. What does not fit there goes from
// memory to memory: a way there, for the receiver's word, and one back with the data, which costs nothing where the
// message before it keeps the wire as long. Messages, and memory, of a pair come in the order in which they were sent;
// between the two there is no order.
//
// Whom one is connected to is proven, before Gloo has the connection (introductions.h). It carries no proof after that;
// docs/security.md says what follows.
//
// A wait ends with an error where the peer's connection ends, where it lasts longer than stall_timeout_s (Tick has to
// be called meanwhile), and by Break. After an error all calls return that first one. What had come before the error is
// not lost: who waits for it has it, unless the error was known first.
//
// Threads: one at a time, but for Break, Tick and broken(), which any thread may call at any time. Memory that was
// posted or sent from has to stay until it was awaited, or Forget has been called. In a process forked from this one
// nothing may be called, and the destructor only lets go.
class Streams {
 public:
  // Of a message: little enough that two for each of many peers are no matter, and much enough that the answer that
  // memory needs is there before a window has left (10 Gbit/s take 0.4 ms for it, an answer 0.05 to 0.3).
  static constexpr int64_t kWindowBytes = int64_t{512} << 10;

  // Opens a port. UNAVAILABLE where the address can't be listened at.
  static Result<std::unique_ptr<Streams>> Listen(StreamsOptions options);
  ~Streams();
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  // What the peers need to reach this rank.
  const std::string& address() const { return introductions_.address(); }

  // Connects all pairs, and proves who is who. theirs: the peers' addresses, [n]; the own is not looked at. Errors are
  // those of Introductions::Connect, UNAVAILABLE where a connection ends, and what Break was given meanwhile.
  Status Connect(const std::vector<std::string>& theirs, const Digest& key, const Deadline& deadline);

  int index() const { return options_.index; }
  int size() const { return static_cast<int>(options_.ranks.size()); }
  const std::vector<int>& ranks() const { return options_.ranks; }

  // What waits are for from now on, for their errors; has to outlive them.
  void SetOperation(std::string_view kind, std::string_view name) {
    kind_ = kind;
    name_ = name;
  }

  // Memory for the next message to a peer, [kWindowBytes]. Waits until the message before the last has left.
  Result<char*> Outgoing(int peer);
  // Sends the first `bytes` of what Outgoing gave.
  Status Send(int peer, int64_t bytes);
  // The next message of a peer, [what the peer sent]; valid until it is released. At most two are held.
  Result<const char*> Await(int peer);
  // Gives the oldest message that is held back, so that the peer can send another.
  void Release(int peer);

  // Readies memory for what the peer sends from memory: each in the order of these calls, of the same length there.
  Status Post(int peer, void* data, int64_t bytes);
  // Waits until the oldest memory that was posted and not awaited is filled.
  Status AwaitPosted(int peer);
  Status SendFrom(int peer, const void* data, int64_t bytes);
  // Waits until the oldest memory that was sent from and not awaited may be changed.
  Status AwaitSent(int peer);

  // After an error: lets go of all memory that was posted or sent from, so that nobody touches it any more. Returns
  // error().
  Status Forget();
  // Before the end: waits until the peers' machines have all that was sent, for `seconds` at most.
  Status Flush(double seconds);

  // Ends all waits with `error`, and makes it what all calls return; nothing after another one. Returns what it is.
  Status Break(const Status& error);
  bool broken() const;
  Status error() const;
  // Ends a wait whose time is over. To be called some times a second while others may wait.
  void Tick();

  // Asked where a connection ends: what is known of that rank (its farewell, its last words); OK where that is nothing.
  // Waits for a second at most.
  std::function<Status(int rank)> ask_fate;

  // "allreduce 'x'".
  std::string Operation() const;

 private:
  struct Peer;
  class Waiting;

  Streams(StreamsOptions options, Introductions introductions);
  Status StartEngine();
  Status OpenWindows(int peer);
  std::unique_ptr<Memory> MakeBuffer(void* data, int64_t bytes);
  // Waits for a buffer that was given to recv or to send.
  Status Wait(Memory& buffer, bool for_send, int peer, double timeout_s);
  // Runs what may throw one of Gloo's exceptions.
  template <typename Work>
  Status Guarded(int peer, const Work& work);
  // Why the connection to a peer has ended, with Gloo's own words where nobody else knows.
  Status Lost(int peer, const std::string& words);

  const ForkGuard fork_;
  const StreamsOptions options_;
  Introductions introductions_;
  struct Engine;  // Gloo's device and context
  std::unique_ptr<Engine> engine_;
  std::vector<std::unique_ptr<Peer>> peers_;  // [n], null for the rank itself
  std::string_view kind_ = "start";
  std::string_view name_;
  std::unique_ptr<Waiting> waiting_;
};

}  // namespace lockstep::gloo
