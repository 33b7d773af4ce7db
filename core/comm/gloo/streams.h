#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/sha256.h"
#include "core/base/status.h"

namespace gloo::transport {
class UnboundBuffer;
}

namespace lockstep::gloo {

// Between which ranks streams are, and how they are called.
struct StreamsOptions {
  int index = 0;           // of this rank among them
  std::vector<int> ranks;  // [n]: their numbers in the job, for messages
  std::string address;     // numeric, of this machine: where the others reach it
  double stall_timeout_s;  // how long a peer may be late
};

// Whole messages and large memory between the ranks of a group, one Gloo connection for each pair. This is the only
// place that knows Gloo: everybody else sees bytes and Status.
//
//   LOCKSTEP_ASSIGN_OR_RETURN(auto streams, Streams::Listen(options));
//   ... tell streams->addresses() to the peers, learn theirs ...
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
// Whom one is connected to is proven: before the first message each pair has exchanged random numbers, and proofs made
// of them and the meeting's key. Gloo's connections carry no proof after that; docs/security.md says what follows.
//
// A wait ends with an error where the peer's connection ends, where it lasts longer than stall_timeout_s (Tick has to
// be called meanwhile), and by Break. After an error all calls return that first one.
//
// Threads: one at a time, but for Break, Tick and broken(), which any thread may call at any time. Memory that was
// posted or sent from has to stay until it was awaited, or an error was returned.
class Streams {
 public:
  // Of a message: little enough that two for each of many peers are no matter, and much enough that the answer that
  // memory needs is there before a window has left (10 Gbit/s take 0.4 ms for it, an answer 0.05 to 0.3).
  static constexpr int64_t kWindowBytes = int64_t{512} << 10;

  // Opens a port for each peer. UNAVAILABLE where the address can't be listened at.
  static Result<std::unique_ptr<Streams>> Listen(StreamsOptions options);
  ~Streams();
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  // What each peer needs to reach this rank, [n]; of the rank itself empty.
  const std::vector<std::string>& addresses() const { return addresses_; }

  // Connects all pairs, and proves who is who. theirs: for this rank, by each peer, [n]. UNAVAILABLE,
  // DEADLINE_EXCEEDED, and FAILED_PRECONDITION where a peer does not know the key.
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
  // Before the end: waits until all messages have left, for `seconds` at most.
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

  explicit Streams(StreamsOptions options);
  Status OpenPorts();
  Status Introduce(const Digest& key, const Deadline& deadline);
  Status OpenWindows(int peer);
  std::unique_ptr<::gloo::transport::UnboundBuffer> MakeBuffer(void* data, int64_t bytes);
  // Waits for a buffer that was given to recv or to send.
  Status Wait(::gloo::transport::UnboundBuffer& buffer, bool for_send, int peer, double timeout_s);
  // Runs what may throw one of Gloo's exceptions.
  template <typename Work>
  Status Guarded(int peer, const Work& work);
  // Why the connection to a peer has ended, with Gloo's own words where nobody else knows.
  Status Lost(int peer, const std::string& words);

  const StreamsOptions options_;
  std::vector<std::string> addresses_;
  struct Engine;  // Gloo's device and context
  std::unique_ptr<Engine> engine_;
  std::vector<std::unique_ptr<Peer>> peers_;  // [n], null for the rank itself
  std::string_view kind_ = "start";
  std::string_view name_;
  std::unique_ptr<Waiting> waiting_;
};

}  // namespace lockstep::gloo
