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

// The start of every collective: each rank tells each other what it calls, with as much of its contribution as fits
// beside that, and waits until it has heard it of all. Then each compares the fingerprints of all, so that all come to
// the same verdict.
//
//   LOCKSTEP_RETURN_IF_ERROR(calls.Begin(call, [&](int peer) { return Calls::Part{data, bytes, count}; }));
//   for (int peer = ...) Use(calls.head(peer), calls.data(peer));
//   return calls.End();
//
// A call takes one way there, at the same time in both directions. Where the ranks disagree, or somebody declined, they
// tell each other in a second message what they called, or why not; after it they are in step again. Thread-compatible.
class Calls {
 public:
  // Before the data of each message, as it lies in memory: all hosts have the same byte order, which the meeting
  // compares.
  struct Head {
    uint64_t fingerprint;
    int64_t number;  // of the call
    int64_t count;   // of items for the receiver, where the call has such
    int64_t bytes;   // that follow
  };
  static_assert(sizeof(Head) == 32);
  // What fits beside a head.
  static constexpr int64_t kMostBytes = Streams::kWindowBytes - int64_t{sizeof(Head)};

  // What a rank brings for a peer. `bytes` may be more than fits: the first kMostBytes of them go.
  struct Part {
    const void* data = nullptr;
    int64_t bytes = 0;
    int64_t count = 0;
  };

  explicit Calls(Streams& streams) : streams_(streams), received_(streams.size()) {}

  // OK, and then End has to be called; or FAILED_PRECONDITION that says who called what, or the reason of the lowest
  // rank that declined; or the streams' error. `part_for` is called once for each peer.
  Status Begin(const Call& call, const std::function<Part(int peer)>& part_for);
  // Takes part with a refusal; what comes back is that or another's, and never OK. `verbatim`: the message has a rank
  // before it already.
  Status Decline(std::string_view name, const Status& why, bool verbatim);
  // What errors call the calls that follow. Nothing: each for itself.
  void ShowAs(std::optional<CallKind> kind) { shown_ = kind; }
  // Gives back what head and data show.
  Status End();

  // Exchanges one more message with each peer, within a call: at most kMostBytes. data() shows what came.
  Status ExchangeMore(const std::function<Part(int peer)>& part_for);

  const Head& head(int peer) const { return *reinterpret_cast<const Head*>(received_[peer]); }
  const char* data(int peer) const { return received_[peer] + sizeof(Head); }

 private:
  Status Send(uint64_t fingerprint, const std::function<Part(int peer)>& part_for);
  // One message of each peer, of this call's number.
  Status Receive();
  // The second message of ranks that disagree. text: what this rank called, or why it does not.
  Status Explain(uint64_t fingerprint, StatusCode code, std::string_view text);

  Streams& streams_;
  int64_t number_ = 0;
  std::optional<CallKind> shown_;
  std::vector<const char*> received_;  // [n], windows of the streams
};

}  // namespace lockstep::gloo
