// Promise of this file (security.md): the rendezvous refuses unauthenticated connections, wrong and repeated proofs,
// and impossible lengths.

#include "core/comm/rendezvous/rendezvous_wire.h"

#include "core/fuzzing/fuzz.h"

// The frames of a rendezvous and their contents. The key is known here: a frame with a right tag comes from a rank that
// knows the secret, and its contents may be anything.

namespace lockstep::fuzzing {
namespace {

const Digest kKey = HmacSha256("secret", "fuzz");

}  // namespace

std::vector<std::string> Seeds() {
  const std::string hello = wire::Encode(wire::Hello{.rank = 1, .size = 2, .pid = 3, .note = "settings\nname"});
  const std::string answer =
      wire::Encode(wire::Answer{OkStatus(), std::string(wire::kNonceBytes, 'n'), {"a", "b"}, {"", "::1"}});
  const std::string error = wire::Encode(wire::Answer{InvalidArgument("rank 1 of 3"), "", {}, {}});
  std::vector<std::string> seeds = {hello, answer, error};
  for (const std::string& body : {hello, answer, error}) {
    seeds.push_back(wire::MakeFrame(kKey, wire::Direction::kToHost, body));
  }
  return seeds;
}

int Fuzz(const uint8_t* data, size_t size) {
  const std::string_view bytes = Bytes(data, size);
  if (const auto hello = wire::DecodeHello(bytes)) Require(wire::Encode(*hello) == bytes, "one hello, one encoding");
  if (const auto answer = wire::DecodeAnswer(bytes)) {
    // The message of an answer without an error is of no use, and is dropped.
    if (!answer->status.ok()) Require(wire::Encode(*answer) == bytes, "one answer, one encoding");
    Require(answer->notes.size() + answer->addresses.size() <= size / 4,
            "no more strings than bytes for their lengths");
  }
  const auto frame = wire::ParseFrame(kKey, wire::Direction::kToHost, bytes);
  if (frame.ok() && frame->has_value()) {
    Require(bytes.starts_with(wire::MakeFrame(kKey, wire::Direction::kToHost, **frame)), "only frames are frames");
  }
  if (size >= 4 && frame.ok() && !frame->has_value()) {
    Require(size < 4 + wire::kMaxHelloBytes + wire::kTagBytes,
            "the parser never waits for more than the longest frame");
  }
  // If it is sent back to its sender, it is not a frame.
  Require(!(frame.ok() && frame->has_value()) || !wire::ParseFrame(kKey, wire::Direction::kToGuest, bytes).ok(),
          "a frame has one direction");
  return 0;
}

}  // namespace lockstep::fuzzing
