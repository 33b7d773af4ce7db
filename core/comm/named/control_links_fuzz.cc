#include "core/comm/named/control_links.h"

#include <sys/socket.h>

#include "core/base/bytes.h"
#include "core/base/unique_fd.h"
#include "core/fuzzing/fuzz.h"

// The bytes that a peer writes to a link. The first two bytes give the kind of socket, whether messages have seals, and
// the size of the pieces.

namespace lockstep::fuzzing {
namespace {

const Digest kKey = Sha256("fuzz");

// The seal of the peer, rank 0, for this rank.
Seal SealOfPeer() { return {kKey, ControlLinks::kSealOfLinks, 0, 1}; }

std::string Messages(const std::vector<std::string>& messages, bool sealed = false) {
  ByteWriter writer;
  Seal seal = SealOfPeer();
  for (const std::string& message : messages) {
    if (!sealed) {
      writer.String(message);
      continue;
    }
    std::string frame(Seal::kBytes, '\0');
    frame += message;
    seal.Close(frame.data(), static_cast<int64_t>(message.size()));
    writer.String(frame);
  }
  return writer.Take();
}

// The expected result: whole messages, up to the first that is longer than the limit, or not sealed as it should be.
std::vector<std::string> Expected(std::string_view bytes, bool sealed) {
  std::vector<std::string> messages;
  Seal seal = SealOfPeer();
  while (bytes.size() >= 4) {
    const auto length = ByteReader(bytes).Number<uint32_t>();
    const uint32_t most = ControlLinks::kMaxMessageBytes + (sealed ? uint32_t{Seal::kBytes} : 0);
    if (length > most || bytes.size() - 4 < length) break;
    std::string_view message = bytes.substr(4, length);
    if (sealed) {
      if (length < Seal::kBytes) break;
      const auto opened = seal.Open(message.data(), length - Seal::kBytes);
      if (!opened || opened->size() != length - size_t{Seal::kBytes}) break;
      message = *opened;
    }
    messages.emplace_back(message);
    bytes.remove_prefix(4 + length);
  }
  return messages;
}

}  // namespace

std::vector<std::string> Seeds() {
  const std::string text = Messages({"one", "", std::string(300, 'x')});
  const std::string sealed = Messages({"one", "", std::string(300, 'x')}, /*sealed=*/true);
  return {std::string("\2\x10", 2) + sealed,
          std::string("\3\xFF", 2) + sealed,
          std::string("\0\x10", 2) + text,
          std::string("\1\xFF", 2) + text,
          std::string("\0\1", 2) + Messages({std::string(3000, 'y'), "z"}),
          std::string("\0\x40", 2) + text + std::string("\xFF\xFF\xFF\x7F", 4)};
}

int Fuzz(const uint8_t* data, size_t size) {
  std::string_view bytes = Bytes(data, size);
  const uint32_t kind = Take(&bytes, 4);
  const int type = kind % 2 == 0 ? SOCK_STREAM : SOCK_SEQPACKET;
  const bool sealed = kind >= 2;
  const size_t piece = 1 + Take(&bytes, 256);
  // The sockets take only so much without a reader: the kernel adds an overhead to each packet.
  bytes = bytes.substr(0, 64 * piece);
  int fds[2];
  Require(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, fds) == 0, "a pair of sockets");
  const UniqueFd ours(fds[0]);
  UniqueFd theirs(fds[1]);
  const std::vector<std::optional<Digest>> keys = {sealed ? std::optional(kKey) : std::nullopt};
  ControlLinks links({ours.get()}, {}, keys, /*self=*/1);
  for (size_t at = 0; at < bytes.size(); at += piece) {
    const std::string_view part = bytes.substr(at, piece);
    if (send(theirs.get(), part.data(), part.size(), MSG_NOSIGNAL | MSG_DONTWAIT) != static_cast<ssize_t>(part.size()))
      return 0;
  }
  theirs = UniqueFd();
  std::vector<std::string> got;
  for (bool closed = false; !closed;) {
    for (const ControlLinks::Event& event : links.Await(10)) {
      Require(event.rank == 0 && !closed, "nothing comes after the end");
      closed = event.closed;
      if (!closed) got.push_back(event.message);
    }
  }
  Require(got == Expected(bytes, sealed), "whole messages come, in order, and nothing else");
  return 0;
}

}  // namespace lockstep::fuzzing
