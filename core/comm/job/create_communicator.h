#pragma once

#include <memory>

#include "core/base/status.h"
#include "core/comm/collective/communicator.h"
#include "core/comm/options.h"

namespace lockstep {

// Joins the other ranks at the rendezvous and connects, by the backend of the options. Returns Context::Create's
// errors. It is for lanes that need their own communicator. later_port: gets the port in
// rank 0's options, unless it is null.
Result<std::unique_ptr<Communicator>> CreateCommunicator(const ContextOptions& options, int* later_port = nullptr);

}  // namespace lockstep
