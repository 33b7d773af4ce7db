#pragma once

#include <poll.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/seal.h"
#include "core/base/sha256.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"
#include "core/comm/named/message_links.h"

namespace lockstep {

// Short messages between ranks over connected sockets, outside of collectives: every rank may send at any time, and no
// rank has to wait for its turn.
// ```cpp
// ControlLinks links(sockets);
// links.Send(0, message);                           // never waits
// for (const auto& event : links.Await(1.0)) ...;   // what arrived, after at most 1 s of waiting
// ```
// Messages from a peer arrive whole and in order. On the wire, each is its length (4 bytes, little-endian) and its
// bytes, in pieces of at most kPieceBytes. So the sockets may be streams or keep packet boundaries (SOCK_SEQPACKET).
// If others can change them on their way, each message has a seal (core/base/seal.h), which counts for its length.
// Await is for one thread; Send and Wake are for any thread.
class ControlLinks final : public MessageLinks {
 public:
  // The most that a peer can make us keep: a longer message closes the link at its receiver. Senders split it before.
  static constexpr uint32_t kMaxMessageBytes = uint32_t{256} << 20;
  // The size of one packet: small enough for any socket's buffer.
  static constexpr size_t kPieceBytes = size_t{64} << 10;

  // sockets: for each rank, a connected socket; no value: this rank has no link to it. deaths: for each rank, a
  // descriptor that becomes readable when its process ends. Without a value, only the end of the socket is seen. That
  // is not enough if a child of the peer has inherited the socket and keeps it open. The caller keeps all of them, and
  // they have to outlive this.
  // keys: for each rank, the key of the seals, the same at both ends; no value: messages have none. self: this rank.
  explicit ControlLinks(const std::vector<std::optional<int>>& sockets,
                        const std::vector<std::optional<int>>& deaths = {},
                        const std::vector<std::optional<Digest>>& keys = {}, int self = 0);
  // The purpose of the seals.
  static constexpr std::string_view kSealOfLinks = "link";

  // RESOURCE_EXHAUSTED if the system had no descriptor left for wake-ups: then these links are of no use.
  Status Usable() const;

  // Sends what the peer can take at once, and the rest during Await; it wakes Await for that. Does nothing if the link
  // is closed. A message that is too long closes the link.
  void Send(int rank, std::string_view message) override;

  std::vector<Event> Await(std::optional<double> seconds) override;
  // Like Await(0), and leaves Wake to another thread that waits in WaitForWake.
  std::vector<Event> Look();

  bool Push(double seconds) override;

  // Waits for Wake or for `seconds`, without reading. May run beside an Await; then a Wake ends one of the two.
  void WaitForWake(double seconds);

  // Ends the current Await or WaitForWake, or the next one.
  void Wake() override;

  // Whether everything has been sent.
  bool flushed() const;

 private:
  // Both parts of a link to a rank have its socket; no value: there is none, or it is closed.
  struct Inbox {
    std::optional<int> socket;
    std::optional<int> death;
    std::string bytes;  // what came and is not yet a whole message
    std::optional<Seal> seal = {};
  };
  struct Outbox {
    std::optional<int> socket;
    std::string bytes;  // what the peer could not take
    std::optional<Seal> seal = {};
  };

  // Moves the whole messages that have come to `events`. Returns an error if the peer has broken the rules.
  static Status TakeMessages(int rank, Inbox& inbox, std::vector<Event>* events);
  static void Flush(Outbox& outbox);
  void ForgetWakes();
  std::vector<Event> Read(std::optional<double> seconds, bool is_woken);
  // Reads what is there, without waiting. If the peer is dead or gone, reads all of it, and nothing more after that.
  void Receive(int rank, bool dead, std::vector<Event>* events);

  mutable Mutex mutex_;
  std::vector<Outbox> out_ LOCKSTEP_GUARDED_BY(mutex_);  // [R]
  UniqueFd wake_;                                        // an eventfd
  // For Await.
  std::vector<Inbox> in_;  // [R]
  // Kept because Await is called in a loop: the socket and the death of each rank, and the wake-up descriptor.
  std::vector<pollfd> awaited_;
};

}  // namespace lockstep
