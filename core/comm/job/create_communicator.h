#pragma once

#include <memory>

#include "core/base/status.h"
#include "core/comm/collective/communicator.h"
#include "core/comm/options.h"

namespace lockstep {

// Joins the other ranks at the rendezvous and connects, by the backend of the options. Returns Context::Create's
// errors. It is for lanes that need their own communicator.
Result<std::unique_ptr<Communicator>> CreateCommunicator(const ContextOptions& options);

}  // namespace lockstep
