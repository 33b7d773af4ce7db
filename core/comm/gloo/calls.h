#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/comm/collective/call.h"
#include "core/comm/gloo/streams.h"

namespace lockstep::gloo {

// The start of every collective. Each rank sends its call to each other rank, with as much of its contribution as fits,
// and waits for the messages of all. Then each compares the fingerprints of all, so all come to the same result.
// ```cpp
// LOCKSTEP_RETURN_IF_ERROR(calls.Begin(call, [&](int peer) { return Calls::Part{data, bytes, count}; }));
// for (int peer = ...) Use(calls.head(peer), calls.data(peer));
// return calls.End();
// ```
// A call takes one message delay, at the same time in both directions. If the ranks disagree, or one declined, each
// sends its call or its reason in a second message; after it they are in step again. Thread-compatible.
class Calls {
 public:
  // The start of each message, in the machine's byte order: all hosts have the same one, which the rendezvous compares.
  struct Head {
    uint64_t fingerprint;
    int64_t number;  // number of the call
    int64_t count;   // number of items for the receiver, if the call has items
    int64_t bytes;   // number of bytes that follow
  };
  static_assert(sizeof(Head) == 32);
  // The most bytes of a contribution that fit into a message after its head.
  static constexpr int64_t kMostBytes = Streams::kWindowBytes - int64_t{sizeof(Head)};

  // A rank's contribution for a peer. If `bytes` is more than fits, the first kMostBytes of them are sent.
  struct Part {
    const void* data = nullptr;
    int64_t bytes = 0;
    int64_t count = 0;
  };

  explicit Calls(Streams& streams) : streams_(streams), received_(streams.size()) {}

  // Begins a call. If it returns OK, End has to be called. Otherwise it returns FAILED_PRECONDITION with the calls of
  // all ranks, the reason of the lowest rank that declined, or the streams' error. `part_for` is called once for each
  // peer.
  Status Begin(const Call& call, const std::function<Part(int peer)>& part_for);
  // Takes part by declining. Returns this rank's reason or another rank's, never OK. `verbatim`: the message already
  // begins with a rank.
  Status Decline(std::string_view name, const Status& why, bool verbatim);
  // Sets the name that errors use for the following calls; without a value each call has its own name.
  void SetNameInErrors(std::optional<CallKind> kind) { shown_ = kind; }
  // Adds the messages to `counters`, which has to outlive this object, and the waits for the peers' first ones.
  void CountWaits(LaneCounters* counters) {
    counters_ = counters;
    streams_.CountMessages(counters);
  }
  // Ends the streams with DATA_LOSS unless each peer's message has that many bytes after its head. To be called before
  // data(peer) is read by a length that is not its head's.
  Status ExpectBytes(const std::function<int64_t(int peer)>& bytes_from);
  // Releases the memory that head and data refer to.
  Status End();

  // Exchanges one more message with each peer, within a call: at most kMostBytes. data() then returns the new message.
  Status ExchangeMore(const std::function<Part(int peer)>& part_for);

  const Head& head(int peer) const { return *reinterpret_cast<const Head*>(received_[peer]); }
  const char* data(int peer) const { return received_[peer] + sizeof(Head); }

 private:
  Status Send(uint64_t fingerprint, const std::function<Part(int peer)>& part_for);
  // Receives one message of each peer, with this call's number. Counts the waits for them in `waits`, unless it is
  // null.
  Status Receive(LaneCounters* waits);
  // Exchanges the second message of ranks that disagree. text: this rank's call, or its reason to decline.
  Status Explain(uint64_t fingerprint, StatusCode code, std::string_view text);

  Streams& streams_;
  int64_t number_ = 0;
  std::optional<CallKind> shown_;
  LaneCounters* counters_ = nullptr;
  std::vector<const char*> received_;  // [n], windows of the streams
};

}  // namespace lockstep::gloo
