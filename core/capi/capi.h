#pragma once

#include "core/base/status.h"
#include "core/comm/job/context.h"
#include "core/comm/named/named_lane.h"
#include "core/telemetry/telemetry.h"

// The few functions that are not TensorFlow ops, for ctypes. Their only caller is lockstep/_src/engine/library.py,
// which declares their types a second time. They are the only symbols that the op library exports (cmake/exports.map).
//
// Errors: no function throws. A function that makes or ends something returns 0 or the StatusCode of its error
// (base/status.h). lockstep_last_error returns the error's text to the same thread, until the thread's next such call.
// The getters (is_initialized, rank, size) cannot fail and do not change that text.
//
// Forks: a child has none of its parent's lanes and may open its own; the parent's lanes are not affected.
//
// Threads: any thread may call any function at any time; ctypes releases Python's lock meanwhile. Strings are copied
// and end with a zero byte. They may be null, which means "".
//
// C has no optionals, so these numbers stand for values that are missing. Everywhere else in this project a missing
// value is an std::optional without a value, or None in Python.
inline constexpr int LOCKSTEP_NO_LISTENER = -1;  // LockstepContextOptions::listener; so are all numbers below it
inline constexpr int LOCKSTEP_NO_CONTEXT = -1;   // rank, size and number of hosts of a process without a context
inline constexpr int LOCKSTEP_NO_NUMBER = -1;    // lockstep_next_number without a lane
inline constexpr int LOCKSTEP_STILL_RUNS = -1;   // lockstep_await_background at the end of its time
// A time that never comes: stopped_timeout_s, end_after_loss_s, and the two times of lockstep_open_lane.
inline constexpr double LOCKSTEP_NEVER_S = 0;

#pragma GCC visibility push(default)
extern "C" {

// The fields of ContextOptions (comm/options.h), times in seconds. A listener of LOCKSTEP_NO_LISTENER and a time of
// LOCKSTEP_NEVER_S are fields without a value.
typedef struct {
  int rank;
  int size;
  const char* rendezvous;
  const char* secret;
  const char* backend;
  const char* interface;
  const char* host;
  const char* listen;
  const char* timeline;
  double rendezvous_timeout_s;
  double stall_timeout_s;
  double stopped_timeout_s;
  double silence_timeout_s;
  double end_after_loss_s;
  long long shared_bytes_per_rank;
  int listener;
  const char* device_backend;
  int device_channels;
  int device_native_sums;
} LockstepContextOptions;

// Joins the other ranks at the rendezvous and makes the default context. Blocks until all ranks are there, or up to
// rendezvous_timeout_s; rank 0's report of the missing ranks may take a little longer. Waits without a lock: other
// threads that ask for the rank meanwhile get LOCKSTEP_NO_CONTEXT. The options are not kept.
//
// FAILED_PRECONDITION if there is already a context, or if another thread made one meanwhile (this call's own context
// then leaves the job again). Otherwise returns the errors of Context::Create. After an error no context exists, and
// init may be called again on all ranks.
int lockstep_init(const LockstepContextOptions* options);

// Leaves the job: running collectives end with CANCELLED, and peers that wait for this rank are notified. Does nothing
// without a context. The context is destroyed with its last owner, which may be a kernel that still runs. If this call
// is the last owner, it returns after the lane has ended. Then lockstep_init may join another job.
//
// The library does not call it at the end of a process. To peers that wait for it, a rank that ends without the call
// looks like one that died. `how` tells the peers how the rank left (Communicator::Leave).
int lockstep_shutdown(const char* how = nullptr);

// Returns the number of the default context among those that this process has made, from 1 on; 0 without a context.
long long lockstep_context_number();

// Waits until the work on the background lane of this context has ended (comm/job/background_lane.h), for at most that
// many seconds. Returns the first error of such work that no call has returned yet; LOCKSTEP_STILL_RUNS if some still
// runs. CANCELLED if the process has left that job: its work may or may not have been done.
int lockstep_await_background(long long number, double seconds);

// Posts a barrier of all ranks to the background lane of this context, and does not wait for it. `error` is "", or why
// this rank has failed; then the barrier is CANCELLED on all ranks, with that text. CANCELLED if the process has left
// that job.
int lockstep_barrier_in_background(long long number, const char* error);

// Ends the process after that many seconds if it has not ended by then. `code` is the exit code, or the negative number
// of a signal. It is for the end of a program, after its exit handlers. The teardown of a process with TensorFlow takes
// seconds on a busy machine, and the other ranks would have to wait for it.
int lockstep_end_within(double seconds, int code);

// Aborts the default context's collectives with `reason` on all ranks. It is for a program that fails outside of a
// collective, so that no peer waits for it in vain. The context stays, but broken: every later collective returns
// CANCELLED with this reason. FAILED_PRECONDITION without a context.
int lockstep_abort(const char* reason);

// Returns 1 with a default context, including an aborted one; else 0.
int lockstep_is_initialized();

// Return this process's rank, in [0, R), and the number R of ranks; LOCKSTEP_NO_CONTEXT without a context.
int lockstep_rank();
int lockstep_size();

// Returns the part of an error's text that says how a communicator or a lane of this process ended because of a peer
// (comm/liveness/peer_end.h); "" if there is no such part. Belongs to the calling thread; valid until its next call.
const char* lockstep_lost_peer(const char* text);

// Returns the number of hosts on which the ranks run (comm/collective/communicator.h); LOCKSTEP_NO_CONTEXT
// without a context.
int lockstep_num_hosts();

// Joins the ranks of a group at the rendezvous and makes the group's named lane (comm/named/named_lane.h), which the
// named ops of this `group` use. Group 0 is all ranks of the job; other numbers are process sets. Rank and size in the
// options are those within the group; the other arguments are fields of NamedLaneOptions. The two times may be
// LOCKSTEP_NEVER_S. Warnings of stalls go to stderr. Blocks like lockstep_init. FAILED_PRECONDITION if the group
// already has a lane; otherwise NamedLane::Create's errors.
int lockstep_open_lane(int group, const LockstepContextOptions* options, long long fusion_bytes,
                       double named_stall_warning_s, double named_stall_timeout_s, const char* label);

// Leaves the group as lockstep_shutdown leaves the job: this rank's waits end with CANCELLED. The lane is destroyed
// when its waiting kernels have ended. Does nothing without a lane.
int lockstep_close_lane(int group, const char* how = nullptr);

// Ends this rank's waiting join with CANCELLED and `why`, for a program that is interrupted. Does nothing without a
// lane or a join.
int lockstep_cancel_join(int group, const char* why);

// Returns NamedLane::NextNumber of the group's lane. Without a lane LOCKSTEP_NO_NUMBER, with a text for
// lockstep_last_error.
long long lockstep_next_number(int group, const char* text);

// Returns 1 if the group's lane cannot be used any more because a rank died or left; else 0.
int lockstep_lane_is_broken(int group);

// Records the activity of the group's lane in a file for viewers of Chrome traces (comm/named/timeline.h). Only rank 0
// of the group writes; on the others it does nothing. `mark_cycles` is 0 or 1. FAILED_PRECONDITION without a lane;
// otherwise NamedLane::StartTimeline's errors. Stopping ends the file, as closing the lane does; it does nothing
// without a lane.
int lockstep_start_timeline(int group, const char* path, int mark_cycles);
int lockstep_stop_timeline(int group);

// Returns the counters of this process since its start, as Telemetry::Json. The text belongs to the calling thread and
// is valid until its next call.
const char* lockstep_counters();

// Counts a training step that has ended (Telemetry::EndStep).
int lockstep_end_step();

// Sets the size of this rank's part of a table (TableCounters::SetSize).
int lockstep_set_table_size(const char* table, long long rows, long long bytes);

// Calls CrashAt (base/crash_point.h), for tests that kill their own process in the middle of its work.
int lockstep_crash_at(const char* point, int passes);

// Returns the last error's text, or "" after a successful call. Belongs to the calling thread; valid until its next
// call of a function that reports errors.
const char* lockstep_last_error();
}
#pragma GCC visibility pop

namespace lockstep {

// Returns the process's one default context, which the TensorFlow ops use. FAILED_PRECONDITION without one; its text
// says how to make one. The pointer is shared, so that a shutdown cannot destroy the context under a running kernel.
// Hold it only during a call: the last owner ends the engine and waits for the work that is posted on its lane. Holds a
// mutex during a copy; thread-safe.
Result<std::shared_ptr<Context>> DefaultContext();

// Returns the telemetry of this process, which all its contexts and lanes share. A fork of the process has its own.
// Never null. Thread-safe; takes some nanoseconds.
const std::shared_ptr<Telemetry>& ProcessTelemetry();

// Returns the named lane of a group, to be held like DefaultContext's result. FAILED_PRECONDITION if there is none,
// which includes a fork of the process that has it.
Result<std::shared_ptr<NamedLane>> NamedLaneOf(int group);

}  // namespace lockstep
