// Promise of this file (security.md): forged, repeated and reflected frames of the watch are refused.

#include "core/comm/liveness/watch_wire.h"

#include <sys/socket.h>

#include "core/base/strings.h"
#include "core/comm/liveness/watch_link.h"
#include "core/fuzzing/fuzz.h"

// The input of a watch's connection. The first byte selects its source:
//
//   0  a message, as a rank with the key may send it
//   1  frames: the rest is their bodies after their lengths; sent in pieces, over a socket
//   2  the bytes themselves, over a socket, from a peer without the key

namespace lockstep::fuzzing {
namespace {

using watch::Channel;
using watch::Message;

const Digest kKey = HmacSha256("secret", "fuzz");

// Writes `bytes` to a link and returns the messages that it parsed until it ended.
std::vector<Message> Received(std::string_view bytes, size_t piece) {
  int fds[2];
  Require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0, "a pair of sockets");
  watch::Link link(kKey, 0, 1, UniqueFd(fds[0]));
  UniqueFd theirs(fds[1]);
  std::vector<Message> messages;
  while (true) {
    const std::string_view part = bytes.substr(0, piece);
    bytes.remove_prefix(part.size());
    if (!part.empty()) (void)!send(theirs.get(), part.data(), part.size(), MSG_NOSIGNAL);
    if (part.empty()) theirs = UniqueFd();
    while (true) {
      const auto message = link.Receive();
      if (!message.ok()) {
        const StatusCode code = message.status().code();
        Require(code == StatusCode::kDataLoss || (part.empty() && code == StatusCode::kUnavailable), "how a link ends");
        return messages;
      }
      if (!message->has_value()) break;
      messages.push_back(**message);
    }
    Require(!part.empty(), "a connection that is closed has an end");
  }
}

void OneMessage(std::string_view bytes) {
  const auto message = watch::Decode(bytes);
  if (!message) return;
  Require(message->kind != Message::Kind::kEnd || !message->status.ok(), "an end has a reason");
  if (message->status.message().size() > watch::kMaxTextBytes) return;
  Require(watch::Encode(*message) == bytes, "one message, one encoding");
}

void Frames(std::string_view bytes) {
  const size_t piece = 1 + Take(&bytes, 256);
  Channel channel(kKey, 1, Channel::Direction::kToZero);
  std::string stream;
  size_t expected = 0;
  bool good = true;
  while (!bytes.empty()) {
    const std::string_view body = bytes.substr(1, static_cast<uint8_t>(bytes[0]));
    bytes.remove_prefix(1 + body.size());
    stream += channel.Seal(body);
    good = good && watch::Decode(body).has_value();
    if (good) ++expected;
  }
  stream.resize(std::min(stream.size(), 64 * piece));
  const size_t got = Received(stream, piece).size();
  Require(got <= expected, "nothing comes after data that cannot be read");
}

}  // namespace

std::vector<std::string> Seeds() {
  const std::string beat = watch::Encode({});
  const std::string left = watch::Encode({Message::Kind::kLeft, 1, Cancelled("it finished")});
  const std::string end = watch::Encode({Message::Kind::kEnd, 1, Unavailable("rank 2 died")});
  const auto with_length = [](const std::string& body) { return StrCat(static_cast<char>(body.size()), body); };
  Channel channel(kKey, 1, Channel::Direction::kToZero);
  const std::string zero(1, '\0');
  return {zero + beat,
          zero + left,
          zero + end,
          StrCat('\1', '\x10', with_length(beat), with_length(end), with_length(left)),
          StrCat('\1', '\xff', with_length(beat), with_length(beat)),
          StrCat('\2', '\x20', channel.Seal(beat), channel.Seal(end))};
}

int Fuzz(const uint8_t* data, size_t size) {
  std::string_view bytes = Bytes(data, size);
  switch (Take(&bytes, 3)) {
    case 0: OneMessage(bytes); break;
    case 1: Frames(bytes); break;
    default: {
      const size_t piece = 1 + Take(&bytes, 256);
      (void)Received(bytes.substr(0, 64 * piece), piece);
    }
  }
  return 0;
}

}  // namespace lockstep::fuzzing
