#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/comm/collective/communicator.h"
#include "core/comm/options.h"

namespace lockstep {

// Makes a communicator from options, with the backends that it needs. The ranks join a rendezvous and exchange their
// hosts. They connect through shared memory inside of each host and over TCP between hosts. A job of one rank needs no
// rendezvous.
//
// later_port: gets the port in rank 0's options, unless it is null.
//
// All ranks have to pass the same settings; otherwise FAILED_PRECONDITION shows both. Blocks for up to
// rendezvous_timeout_s and a little longer. `options` are valid (Validate) and are not kept. Returns the errors of
// JoinRendezvous, and of the parts. After an error all connections of this rank are closed, which the others notice.
Result<std::unique_ptr<Communicator>> Assemble(const ContextOptions& options, int* later_port = nullptr);

// Returns the identity of the host: ranks with the same one can share memory. It is made of the machine's boot id and
// the network namespace, in which local sockets have their names. Containers that share neither are separate hosts.
std::string ThisHost();

}  // namespace lockstep
