#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/comm/collective/communicator.h"
#include "core/comm/options.h"

namespace lockstep {

// From options to a communicator, whichever backends it takes: the ranks meet, say on which host they are, and come
// together through shared memory inside of each host and over connections between hosts. A job of one rank meets
// nobody.
//
// All ranks have to bring the same settings; FAILED_PRECONDITION shows both where they don't. Blocks for up to
// rendezvous_timeout_s and a little longer. `options` are valid (Validate) and are not kept. Errors are those of Meet,
// and of the parts. After an error nothing is left: the others see this rank's connections close.
Result<std::unique_ptr<Communicator>> Assemble(const ContextOptions& options);

// What tells hosts apart: ranks with the same one can share memory. The machine's boot and its network's namespace, in
// which local sockets have their names; containers that share neither are hosts of their own.
std::string ThisHost();

}  // namespace lockstep
