#pragma once

#include "core/base/status.h"
#include "core/comm/context.h"

// The few functions that are no tensor operation, for ctypes: Python's lockstep._src.library is their only caller.
// None throws. Those that return int return 0, or the StatusCode of the error, whose text lockstep_last_error gives to
// the calling thread until its next call. The only symbols that the op library shows (tf/exports.map).
#pragma GCC visibility push(default)
extern "C" {

// Meets the other ranks and makes the default context. FAILED_PRECONDITION when there is one already.
int lockstep_init(int rank, int size, const char* rendezvous, const char* secret, const char* backend,
                  double rendezvous_timeout_s, double stall_timeout_s, long long shared_bytes_per_rank);

// Leaves the job: collectives that still run end with CANCELLED, peers that wait for this rank are told. Does nothing
// without a context.
int lockstep_shutdown();

// Aborts the default context's collectives with `reason`, on all ranks.
int lockstep_abort(const char* reason);

int lockstep_is_initialized();

// -1 without a context.
int lockstep_rank();
int lockstep_size();

const char* lockstep_last_error();
}
#pragma GCC visibility pop

namespace lockstep {

// The process's one default context, which the TensorFlow ops use; FAILED_PRECONDITION that says how to make one.
// Shared, so that a shutdown cannot take it from under a running kernel.
Result<std::shared_ptr<Context>> DefaultContext();

}  // namespace lockstep
