#include "core/comm/gloo/calls.h"

#include <algorithm>
#include <cstring>

#include "core/base/bytes.h"
#include "core/base/seal.h"
#include "core/base/strings.h"
#include "core/telemetry/clock.h"

namespace lockstep::gloo {

Status Calls::Begin(const Call& call, const std::function<Part(int peer)>& part_for) {
  LOCKSTEP_RETURN_IF_ERROR(streams_.error());
  ++number_;
  streams_.SetOperation(CallKindName(shown_.value_or(call.kind)), call.name);
  const uint64_t fingerprint = FingerprintOf(call);
  LOCKSTEP_RETURN_IF_ERROR(Send(fingerprint, part_for));
  LOCKSTEP_RETURN_IF_ERROR(Receive(counters_));
  for (int peer = 0; peer < streams_.size(); ++peer) {
    if (peer == streams_.index() || head(peer).fingerprint == fingerprint) continue;
    return Explain(fingerprint, StatusCode::kOk, DescribeCall(call));
  }
  return OkStatus();
}

Status Calls::Decline(std::string_view name, const Status& why, bool verbatim) {
  LOCKSTEP_RETURN_IF_ERROR(streams_.error());
  ++number_;
  streams_.SetOperation(CallKindName(shown_.value_or(CallKind::kDecline)), name);
  LOCKSTEP_RETURN_IF_ERROR(Send(kDeclinedCall, [](int) { return Part{}; }));
  LOCKSTEP_RETURN_IF_ERROR(Receive(counters_));
  const std::string prefix = verbatim ? "" : StrCat("rank ", streams_.ranks()[streams_.index()], ": ");
  return Explain(kDeclinedCall, why.code(), StrCat(prefix, why.message()));
}

Status Calls::Send(uint64_t fingerprint, const std::function<Part(int peer)>& part_for) {
  const int size = streams_.size();
  // Each rank begins with the next one, so that not all send to the same rank at a time.
  for (int i = 1; i < size; ++i) {
    const int peer = (streams_.index() + i) % size;
    LOCKSTEP_ASSIGN_OR_RETURN(char* const message, streams_.Outgoing(peer));
    const Part part = part_for(peer);
    const Head head = {fingerprint, number_, part.count, std::min(part.bytes, kMostBytes)};
    std::memcpy(message, &head, sizeof(head));
    if (head.bytes > 0) std::memcpy(message + sizeof(head), part.data, static_cast<size_t>(head.bytes));
    LOCKSTEP_RETURN_IF_ERROR(streams_.Send(peer, int64_t{sizeof(head)} + head.bytes));
  }
  return OkStatus();
}

// A message of a peer that is here is not waited for. Between hosts a wait contains the message's way.
Status Calls::Receive(LaneCounters* waits) {
  const int size = streams_.size();
  for (int i = 1; i < size; ++i) {
    const int peer = (streams_.index() + i) % size;
    const int64_t begin_ns = waits == nullptr ? 0 : SteadyNs();
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string_view message, streams_.Await(peer));
    if (waits != nullptr) waits->AddWait(streams_.ranks()[peer], begin_ns, SteadyNs() - begin_ns);
    const auto bytes = static_cast<int64_t>(message.size()) - int64_t{sizeof(Head)};
    if (bytes < 0) {
      return streams_.Break(DataLoss(StrCat("rank ", streams_.ranks()[streams_.index()], ": rank ",
                                            streams_.ranks()[peer], " sent a message of ", message.size(), " bytes in ",
                                            streams_.Operation(), ", wanted ", sizeof(Head), " or more")));
    }
    received_[peer] = message.data();
    const Head& got = head(peer);
    if (got.number != number_ || got.bytes != bytes || got.count < 0) {
      return streams_.Break(
          DataLoss(StrCat("rank ", streams_.ranks()[streams_.index()], ": rank ", streams_.ranks()[peer],
                          " sent a message of call ", got.number, " with ", got.bytes, " bytes for ", got.count,
                          " items in ", streams_.Operation(), ", which is call ", number_)));
    }
    if (counters_ != nullptr) counters_->AddReceivedMessage(Seal::kBytes + int64_t{sizeof(Head)} + got.bytes);
  }
  return OkStatus();
}

Status Calls::ExpectBytes(const std::function<int64_t(int peer)>& bytes_from) {
  for (int peer = 0; peer < streams_.size(); ++peer) {
    if (peer == streams_.index() || head(peer).bytes == bytes_from(peer)) continue;
    return streams_.Break(DataLoss(StrCat(
        "rank ", streams_.ranks()[streams_.index()], ": rank ", streams_.ranks()[peer], " sends ", head(peer).bytes,
        " bytes for ", head(peer).count, " items in ", streams_.Operation(), ", wanted ", bytes_from(peer), " bytes")));
  }
  return OkStatus();
}

Status Calls::End() {
  for (int peer = 0; peer < streams_.size(); ++peer) {
    if (peer != streams_.index()) streams_.Release(peer);
  }
  return streams_.error();
}

Status Calls::ExchangeMore(const std::function<Part(int peer)>& part_for) {
  LOCKSTEP_RETURN_IF_ERROR(End());
  LOCKSTEP_RETURN_IF_ERROR(Send(/*fingerprint=*/1, part_for));
  return Receive(nullptr);
}

Status Calls::Explain(uint64_t fingerprint, StatusCode code, std::string_view text) {
  std::vector<uint64_t> fingerprints(streams_.size(), fingerprint);
  for (int peer = 0; peer < streams_.size(); ++peer) {
    if (peer != streams_.index()) fingerprints[peer] = head(peer).fingerprint;
  }
  constexpr size_t kLongest = 2048;
  text = text.substr(0, kLongest);
  ByteWriter writer;
  writer.Number(static_cast<uint32_t>(code));
  writer.String(text);
  const std::string mine = writer.Take();
  LOCKSTEP_RETURN_IF_ERROR(ExchangeMore([&](int) { return Part{mine.data(), static_cast<int64_t>(mine.size()), 0}; }));
  std::vector<Status> said(streams_.size());
  std::vector<std::string> texts(streams_.size(), std::string(text));
  said[streams_.index()] = Status(code, std::string(text));
  for (int peer = 0; peer < streams_.size(); ++peer) {
    if (peer == streams_.index()) continue;
    ByteReader reader(std::string_view(data(peer), static_cast<size_t>(head(peer).bytes)));
    const auto got = reader.Number<uint32_t>();
    texts[peer] = reader.String();
    const bool refuses = fingerprints[peer] == kDeclinedCall;
    if (!reader.Complete() || texts[peer].size() > kLongest || got > static_cast<uint32_t>(StatusCode::kDataLoss) ||
        refuses != (got != static_cast<uint32_t>(StatusCode::kOk))) {
      return streams_.Break(
          DataLoss(StrCat("rank ", streams_.ranks()[streams_.index()], ": the ", refuses ? "error" : "call",
                          " that rank ", streams_.ranks()[peer], " sent cannot be read in ", streams_.Operation())));
    }
    said[peer] = Status(static_cast<StatusCode>(got), texts[peer]);
  }
  LOCKSTEP_RETURN_IF_ERROR(End());
  for (int i = 0; i < streams_.size(); ++i) {
    if (fingerprints[i] == kDeclinedCall) return said[i];
  }
  return CallsDiffer(streams_.ranks()[streams_.index()], number_, streams_.ranks(), fingerprints,
                     [&](int i) { return texts[i]; });
}

}  // namespace lockstep::gloo
