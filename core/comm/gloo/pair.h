#pragma once

#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>
#include <gloo/transport/tcp/unbound_buffer.h>

#include <optional>

#include "core/base/not_in_forks.h"
#include "core/base/unique_fd.h"

namespace lockstep::gloo {

// Memory that Gloo reads or writes: its unbound buffer, with a way for a pair to end waits for it.
class Memory final : public ::gloo::transport::tcp::UnboundBuffer {
 public:
  using UnboundBuffer::UnboundBuffer;
  // Makes unfinished waits throw this exception.
  void Fail(const std::exception_ptr& why) { signalException(why); }
};

// One of Gloo's connections, over a socket that was connected and authenticated elsewhere. It differs from Gloo's own:
//
// - Gloo would listen at its own port and accept the first caller. This class never accepts a connection.
// - Gloo reports invalid input (an unknown slot, more bytes than there is memory for) by an exception on its thread,
//   which ends the process. Here it ends the connection.
// - Gloo spins for ever on bytes for its older kind of buffers. Here they end the connection too.
// - If a connection ends, Gloo wakes waits for transfers that have not begun, but not for running ones. Here all wake.
// - Forks of the process would keep the socket open. Here they do not.
//
// Threads: any, except for the destructor.
class Pair final : public ::gloo::transport::tcp::Pair {
 public:
  // Makes an unconnected pair. Throws Gloo's exceptions, as all of its methods do.
  Pair(::gloo::transport::tcp::Context& context, ::gloo::transport::tcp::Device& device, int peer);
  ~Pair() override;

  // Takes ownership of the socket, connected and non-blocking. Call it once, before anything else.
  void Adopt(UniqueFd socket);
  // Leaves the connection open and unused: unfinished transfers from or to destroyed memory would keep Gloo's thread
  // busy.
  void Rest();
  // Returns whether the machine at the other end has received everything, or will receive no more.
  bool Acknowledged();

  // Called by Gloo's thread.
  void handleEvents(int events) override;

 protected:
  bool read() override;
  void changeState(state next) noexcept override;

 private:
  std::optional<NotInForks> not_in_forks_;  // guarded by m_
};

}  // namespace lockstep::gloo
