// Promise of this file (security.md): streams refuse unauthenticated connections and malformed messages.

#include "core/comm/gloo/streams.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>

#include "core/base/seal.h"
#include "core/base/strings.h"
#include "core/comm/gloo/pair.h"
#include "core/comm/rendezvous/rendezvous_wire.h"
#include "core/fuzzing/fuzz.h"

// Gloo reads from a faulty peer that knows the key. A rank waits for two messages and some memory while the input
// arrives over its connection. The first byte is the length of that memory; then come words. A byte above 5 is sent
// unchanged. Bytes below 5 stand for 8 bytes of that number, so that mutations of few bytes give headers that Gloo
// accepts. A 5 stands for the peer's next message with its seal; the byte after it has its length.

namespace lockstep::fuzzing {
namespace {

using gloo::Introductions;
using gloo::Streams;
using Op = ::gloo::transport::tcp::Op;

constexpr double kPatience_s = 20;
const Digest kKey = HmacSha256("secret", "fuzz");
const std::vector<int> kRanks = {0, 10};

void AppendMessage(Seal& seal, std::string_view message, std::string* words) {
  std::string frame(Seal::kBytes, '\0');
  frame += message;
  seal.Close(frame.data(), static_cast<int64_t>(message.size()));
  for (const size_t opcode : {size_t{Op::NOTIFY_SEND_READY}, size_t{Op::SEND_UNBOUND_BUFFER}}) {
    Op op;
    op.preamble = {};
    op.preamble.nbytes = sizeof(op.preamble);
    op.preamble.opcode = opcode;
    op.preamble.length = frame.size();
    words->append(reinterpret_cast<const char*>(&op.preamble), sizeof(op.preamble));
  }
  words->append(frame);
}

std::string Words(std::string_view bytes) {
  std::string words;
  Seal seal = Streams::SealOf(kKey, kRanks[1], kRanks[0]);
  while (!bytes.empty()) {
    const char byte = bytes.front();
    bytes.remove_prefix(1);
    if (byte == 5) {
      const uint32_t length = Take(&bytes, 0x100);
      const std::string_view message = bytes.substr(0, length);
      bytes.remove_prefix(std::min(message.size(), bytes.size()));
      AppendMessage(seal, message, &words);
      continue;
    }
    words += byte;
    if (byte >= 0 && byte < 5) words.append(7, '\0');
  }
  return words;
}

}  // namespace

std::vector<std::string> Seeds() {
  const auto said = [](size_t opcode, size_t slot, char length) {
    // nbytes, opcode, slot, offset, length, roffset
    return std::string({0, static_cast<char>(opcode), static_cast<char>(slot), 0, length, 0});
  };
  const std::string memory(1, '\4');
  const std::string message("\5\3abc");
  const std::string without_seal = said(Op::NOTIFY_SEND_READY, 0, 3) + said(Op::SEND_UNBOUND_BUFFER, 0, 3) + "abc";
  return {memory + message,
          memory + message + message,
          memory + message + without_seal,
          memory + said(Op::SEND_UNBOUND_BUFFER, 1, 4) + "abcd" + message,
          memory + said(Op::SEND_UNBOUND_BUFFER, 0, 0) + said(Op::SEND_UNBOUND_BUFFER, 0, 0),
          memory + said(Op::NOTIFY_RECV_READY, 1, 4) + said(Op::NOTIFY_RECV_READY, 0, 4),
          memory + said(Op::SEND_BUFFER, 0, 4) + "abcd"};
}

int Fuzz(const uint8_t* data, size_t size) {
  std::string_view bytes = Bytes(data, size);
  const uint32_t memory_bytes = 1 + Take(&bytes, 0x100);
  const std::string words = Words(bytes.substr(0, 4096));
  auto made = Streams::Listen({.index = 0, .ranks = kRanks, .address = "127.0.0.1", .stall_timeout_s = kPatience_s});
  auto own = Introductions::Listen("127.0.0.1", "rank 10");
  Require(made.ok() && own.ok(), "ports to listen at");
  Streams& streams = **made;
  const std::vector<std::string> addresses = {streams.address(), own->address()};
  const Deadline deadline = Deadline::After(kPatience_s);
  std::thread peer([&] {
    auto sockets = own->Connect(1, kRanks, addresses, kKey, deadline, nullptr);
    Require(sockets.ok(), "a peer that knows the key");
    const UniqueFd& socket = (*sockets)[0];
    (void)wire::SendAll(socket.get(), words, deadline);
    shutdown(socket.get(), SHUT_WR);
    while (wire::ReceiveExactly(socket.get(), 1, deadline).ok()) {
    }
  });
  Status status = streams.Connect(addresses, kKey, deadline);
  // Exactly the announced length: further bytes are beyond it.
  const auto memory = std::make_unique<char[]>(memory_bytes);
  if (status.ok()) status = streams.Post(1, memory.get(), memory_bytes);
  bool posted = status.ok();
  for (int message = 0; status.ok(); ++message) {
    status = streams.Await(1).status();
    if (status.ok()) streams.Release(1);
    if (status.ok() && message == 1 && posted) {
      posted = false;
      status = streams.AwaitPosted(1);
    }
  }
  Require(status.code() == StatusCode::kUnavailable || status.code() == StatusCode::kDataLoss,
          "a connection that ends is the end, and so is a message without a seal");
  (void)streams.Forget();
  made->reset();
  peer.join();
  Require(!deadline.Passed(), "no rank waits for a peer that has left");
  return 0;
}

}  // namespace lockstep::fuzzing
