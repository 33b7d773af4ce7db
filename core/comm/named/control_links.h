#pragma once

#include <poll.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/base/unique_fd.h"

namespace lockstep {

// Short messages between ranks over connected sockets, outside of collectives: whoever has something to say says it,
// and nobody waits in turn.
//
//   ControlLinks links(sockets);
//   links.Send(0, message);                           // never waits
//   for (const auto& event : links.Await(1.0)) ...;   // what came meanwhile, or after at most 1 s
//
// Messages of a peer come whole and in order. On the wire each is its length (4 bytes, little-endian) and its bytes, in
// pieces of at most kPieceBytes: sockets may be streams, or keep the borders of packets (SOCK_SEQPACKET).
// Await is for one thread; Send and Wake for any.
class ControlLinks {
 public:
  // What a peer may make us keep: a longer message closes the link where it comes in. Who sends splits it before.
  static constexpr uint32_t kMaxMessageBytes = uint32_t{256} << 20;
  // What one packet holds: little enough for any socket's buffer.
  static constexpr size_t kPieceBytes = size_t{64} << 10;

  // sockets: of each rank, connected, or -1. deaths: of each rank, what becomes readable when its process ends, or -1:
  // a child that has inherited the peer's socket keeps that open. All stay the caller's and have to outlive this.
  explicit ControlLinks(const std::vector<int>& sockets, const std::vector<int>& deaths = {});

  // RESOURCE_EXHAUSTED where the system had no descriptor left for waking: then it is of no use.
  Status Usable() const;

  // Sends what the peer can take at once, and the rest during Await, which it wakes for that. Nothing where the link is
  // closed. A message that is too long closes it.
  void Send(int rank, std::string_view message);

  struct Event {
    int rank;
    std::string message;
    bool closed = false;  // the peer has closed, died, or broken the rules: nothing more comes from it
  };
  // What has come in. Where that is nothing, waits for a peer, for Wake, or for `seconds`; a negative number is no
  // limit. Each rank is reported as closed once.
  std::vector<Event> Await(double seconds);

  // Sends what peers could not take, for at most `seconds`, without looking at what comes. Whether all has left. On the
  // thread of Await.
  bool Push(double seconds);

  // Waits for Wake or for `seconds`, and does not listen. May run beside an Await, and then a Wake ends one of them.
  void Doze(double seconds);

  // Ends the Await or Doze of now, or the next one.
  void Wake();

  // Whether all that was sent has left.
  bool flushed() const;

 private:
  struct Link {
    int socket;
    int death;
    std::string in;   // what came and is not yet a whole message
    std::string out;  // guarded by mutex_: what the peer could not take
  };

  // With mutex_ held.
  static void Flush(Link& link);
  void ForgetWakes();
  // Reads what is there, without waiting: all of it where the peer is dead or gone, and then nothing more.
  void Receive(int rank, bool dead, std::vector<Event>* events);

  mutable std::mutex mutex_;
  std::vector<Link> links_;  // a socket becomes -1 with mutex_ held, in Await
  UniqueFd wake_;            // an eventfd
  // Of Await, which is called in a loop: the socket and the death of each rank, and what wakes.
  std::vector<pollfd> awaited_;
};

}  // namespace lockstep
