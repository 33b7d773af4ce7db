// Promise of this file (security.md): counts and sizes of a lying rank are an error that names it, before anything is
// allocated.

#include "core/comm/gloo/calls.h"

#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/strings.h"
#include "core/comm/gloo/gloo_communicator.h"
#include "core/fuzzing/fuzz.h"

// Messages of collectives between hosts, from a faulty rank of the job: our rank calls one collective again and again,
// while the input arrives as its peer's messages. The first byte selects the collective. Each message begins with a
// byte of bits:
//
//   1   its fingerprint is the right one, else a declined call's (2), else the next byte
//   4   its number is the right one, else the next byte
//   8   its number of items is the next two bytes, else an impossible one
//   16  its number of bytes is the right one, else the next two bytes
//
// Then follow a byte with a count and up to 255 bytes.

namespace lockstep::fuzzing {
namespace {

using gloo::Calls;
using gloo::GlooCommunicator;
using gloo::Streams;

constexpr double kPatience_s = 20;
constexpr int64_t kCount = 8;
// The peer reads nothing; this many messages fit into windows.
constexpr size_t kMostMessages = 4;
const Digest kKey = HmacSha256("secret", "fuzz");
const std::vector<int> kRanks = {0, 10};

constexpr std::string_view kName = "x";
constexpr uint32_t kKinds = 5;

Call CallOf(uint32_t kind) {
  switch (kind) {
    case 0: return {.kind = CallKind::kBarrier, .name = kName};
    case 1:
      return {
          .kind = CallKind::kAllReduce, .name = kName, .dtype = DType::kInt32, .op = ReduceOp::kSum, .count = kCount};
    case 2: return {.kind = CallKind::kBroadcast, .name = kName, .root = 1, .count = kCount};
    case 3:
      return {.kind = CallKind::kAllGatherV,
              .name = kName,
              .dtype = DType::kInt32,
              .width = 1,
              .count = kCount,
              .count_agrees = false};
    default:
      return {.kind = CallKind::kAllToAllV, .name = kName, .dtype = DType::kInt32, .width = 1, .count_agrees = false};
  }
}

// Runs our rank. Memory for arrivals is limited.
Status Run(GlooCommunicator& communicator, uint32_t kind) {
  std::vector<int32_t> in(2 * kCount, 7), out(2 * kCount);
  std::vector<char> incoming;
  const Allocate allocate = [&](std::span<const int64_t> counts) -> Result<void*> {
    Require(counts.size() == 2 && counts[0] >= 0 && counts[1] >= 0, "numbers of items");
    if (counts[0] + counts[1] > 4096) return ResourceExhausted("no memory");
    incoming.resize(static_cast<size_t>(counts[0] + counts[1]) * sizeof(int32_t));
    return static_cast<void*>(incoming.data());
  };
  const std::vector<int64_t> send_counts = {kCount, kCount};
  switch (kind) {
    case 0: return communicator.Barrier(kName);
    case 1: return communicator.AllReduce(kName, ReduceOp::kSum, DType::kInt32, kCount, in.data(), out.data());
    case 2: return communicator.Broadcast(kName, 1, kCount, out.data());
    case 3: return communicator.AllGatherV(kName, {DType::kInt32, 1}, kCount, in.data(), allocate);
    default: return communicator.AllToAllV(kName, {DType::kInt32, 1}, send_counts, in.data(), allocate);
  }
}

std::string NextMessage(uint32_t kind, int64_t number, std::string_view* bytes) {
  const uint32_t bits = Take(bytes, 32);
  Calls::Head head = {};
  head.fingerprint = (bits & 1) != 0 ? FingerprintOf(CallOf(kind)) : (bits & 2) != 0 ? kDeclinedCall : Take(bytes, 256);
  head.number = (bits & 4) != 0 ? number : int64_t{Take(bytes, 256)} - 128;
  head.count = (bits & 8) != 0 ? Take(bytes, 0x10000) : (bits & 2) != 0 ? -1 : int64_t{1} << 62;
  const uint32_t asked = (bits & 16) == 0 ? Take(bytes, 0x10000) : 0;
  const std::string_view data = bytes->substr(0, Take(bytes, 256));
  bytes->remove_prefix(std::min(data.size(), bytes->size()));
  head.bytes = (bits & 16) != 0 ? static_cast<int64_t>(data.size()) : int64_t{asked} * (asked % 3 == 0 ? -1 : 17);
  return StrCat(std::string_view(reinterpret_cast<const char*>(&head), sizeof(head)), data);
}

void Peer(Streams& streams, const std::vector<std::string>& addresses, uint32_t kind, std::string_view bytes) {
  const Deadline deadline = Deadline::After(kPatience_s);
  Require(streams.Connect(addresses, kKey, deadline).ok(), "a peer that knows the key");
  for (size_t i = 1; i <= kMostMessages && !bytes.empty(); ++i) {
    const std::string message = NextMessage(kind, static_cast<int64_t>(i), &bytes);
    const Result<char*> window = streams.Outgoing(0);
    if (!window.ok()) break;
    std::memcpy(*window, message.data(), message.size());
    if (!streams.Send(0, static_cast<int64_t>(message.size())).ok()) break;
  }
  // Lets data that is on its way arrive before the end.
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

}  // namespace

std::vector<std::string> Seeds() {
  // 32 bytes of a contribution after the right head.
  const std::string right("\x1d\x08\0\x20", 4), refusal("\x1e\0\0", 3);
  std::vector<std::string> seeds;
  for (char kind = 0; kind < static_cast<char>(kKinds); ++kind) {
    seeds.push_back(std::string(1, kind) + right + std::string(32, '\1') + right + std::string(32, '\1'));
  }
  ByteWriter why;
  why.Number(static_cast<uint32_t>(StatusCode::kInvalidArgument));
  why.String("an id out of range");
  const std::string text = why.Take();
  seeds.push_back(StrCat(std::string("\3", 1), refusal, std::string("\0", 1), std::string("\x1d\0\0", 3),
                         static_cast<char>(text.size()), text));
  return seeds;
}

int Fuzz(const uint8_t* data, size_t size) {
  std::string_view bytes = Bytes(data, size);
  const uint32_t kind = Take(&bytes, kKinds);
  std::vector<std::unique_ptr<Streams>> streams;
  for (int i = 0; i < 2; ++i) {
    auto made = Streams::Listen({.index = i, .ranks = kRanks, .address = "127.0.0.1", .stall_timeout_s = kPatience_s});
    Require(made.ok(), "a port to listen at");
    streams.push_back(*std::move(made));
  }
  const std::vector<std::string> addresses = {streams[0]->address(), streams[1]->address()};
  std::thread peer([&] {
    Peer(*streams[1], addresses, kind, bytes);
    streams[1].reset();
  });
  const Deadline deadline = Deadline::After(kPatience_s);
  // The peer may have sent everything, and disconnected, before the windows are open.
  const Status connected = streams[0]->Connect(addresses, kKey, deadline);
  Require(connected.ok() || connected.code() == StatusCode::kUnavailable, "a rank that knows the key");
  GlooCommunicator communicator(std::move(streams[0]));
  while (!communicator.broken()) (void)Run(communicator, kind);
  peer.join();
  Require(!deadline.Passed(), "no rank waits for a peer that has left");
  return 0;
}

}  // namespace lockstep::fuzzing
