#pragma once

#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>
#include <gloo/transport/tcp/unbound_buffer.h>

#include <optional>

#include "core/base/not_in_forks.h"
#include "core/base/unique_fd.h"

namespace lockstep::gloo {

// Memory that Gloo reads from or writes to: its unbound buffer, which a pair can end the wait for.
class Memory final : public ::gloo::transport::tcp::UnboundBuffer {
 public:
  using UnboundBuffer::UnboundBuffer;
  // Waits that are not over yet throw this.
  void Fail(const std::exception_ptr& why) { signalException(why); }
};

// One of Gloo's connections, over a socket that others have made and proven. What Gloo's own does otherwise:
//
//   It would listen at a port of its own and take the first who calls. This one never accepts anybody.
//   What it cannot make sense of (an unknown slot, more bytes than there is memory for) it says by an exception on
//   Gloo's thread, which ends the process. Here it ends the connection.
//   It turns round and round for bytes that are for one of its older kind of buffers. Here they end the connection too.
//   Where a connection ends, it wakes those who wait for what has not begun to move, but not those whose bytes are
//   under way. Here it wakes all.
//   Forks of the process would keep the socket open. Here they don't.
//
// Threads: any, but for the destructor.
class Pair final : public ::gloo::transport::tcp::Pair {
 public:
  // Not connected yet. Throws Gloo's exceptions, as everything of it.
  Pair(::gloo::transport::tcp::Context& context, ::gloo::transport::tcp::Device& device, int peer);
  ~Pair() override;

  // Takes over the socket, connected and non-blocking. Once, before anything else.
  void Adopt(UniqueFd socket);
  // Lets the connection be as it is, open and unused: what was under way from or to memory that is gone would keep
  // Gloo's thread turning round.
  void Rest();
  // Whether the machine at the other end has all that was sent, or will get no more.
  bool Acknowledged();

  // Of Gloo's thread.
  void handleEvents(int events) override;

 protected:
  bool read() override;
  void changeState(state next) noexcept override;

 private:
  std::optional<NotInForks> not_in_forks_;  // guarded by m_
};

}  // namespace lockstep::gloo
