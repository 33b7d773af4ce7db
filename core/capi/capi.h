#pragma once

#include "core/base/status.h"
#include "core/comm/job/context.h"
#include "core/comm/named/named_lane.h"

// The few functions that are no tensor operation, for ctypes: Python's lockstep._src.engine.library is their only
// caller, and declares their types a second time. They are the only symbols that the op library shows (tf/exports.map).
//
// Errors: none throws. Those that make or end something return 0, or the StatusCode of the error (base/status.h), whose
// text lockstep_last_error gives to the calling thread until its next such call. The getters (is_initialized, rank,
// size) cannot fail and leave that text alone.
//
// Forks: a child has none of its parent's lanes, and may open its own; the parent's stay as they are.
//
// Threads: all may be called from any thread at any time; ctypes lets go of Python's lock meanwhile. Strings are
// copied, end with a zero byte, and may be null, which means "".
#pragma GCC visibility push(default)
extern "C" {

// The fields of ContextOptions (comm/options.h), times in seconds; listener: -1 for none.
typedef struct {
  int rank;
  int size;
  const char* rendezvous;
  const char* secret;
  const char* backend;
  const char* interface;
  const char* host;
  const char* listen;
  double rendezvous_timeout_s;
  double stall_timeout_s;
  double stopped_timeout_s;
  double silence_timeout_s;
  double end_after_loss_s;
  long long shared_bytes_per_rank;
  int listener;
} LockstepContextOptions;

// Meets the other ranks and makes the default context. Blocks until all ranks are there, or up to rendezvous_timeout_s
// and a little longer for rank 0's report of who is missing. Waits without a lock: other threads may ask for the rank
// meanwhile, and hear -1. The options are not kept.
//
// FAILED_PRECONDITION when there is a context already, or when another thread made one meanwhile (this call's own then
// leaves the job again); the errors of Context::Create otherwise. After an error there is no context, and init may be
// called again, on all ranks.
int lockstep_init(const LockstepContextOptions* options);

// Leaves the job: collectives that still run end with CANCELLED, peers that wait for this rank are told. Does nothing
// without a context. The context itself goes with its last owner, who may be a kernel that still runs; where that is
// this call, it returns after the lane has ended. Then lockstep_init may join another job.
//
// The library does not call it at the end of a process: a rank that ends without it looks, to the peers that wait for
// it, like one that died. They hear `how` it left (Communicator::Leave).
int lockstep_shutdown(const char* how = nullptr);

// Ends the process after so many seconds, if it has not ended by then, as it is: with this exit code, or by this signal
// where the number is negative. For the end of a program, behind its exit handlers: to take a process with TensorFlow
// apart costs seconds on a busy machine, for which the other ranks would have to wait.
int lockstep_end_within(double seconds, int code);

// Aborts the default context's collectives with `reason`, on all ranks: for a program that fails outside of a
// collective, so that no peer waits for it in vain. The context stays, broken: every later collective returns CANCELLED
// with this reason. FAILED_PRECONDITION without a context.
int lockstep_abort(const char* reason);

// 1 with a default context, also an aborted one; else 0.
int lockstep_is_initialized();

// This process's rank, in [0, R), and the number R of ranks. -1 without a context.
int lockstep_rank();
int lockstep_size();

// The part of an error's text that says how a communicator or a lane of this process has ended because a peer had
// (comm/liveness/peer_end.h); "" where none does. Belongs to the calling thread; valid until its next call.
const char* lockstep_lost_peer(const char* text);

// The number of hosts that the ranks are on (comm/collective/communicator.h). -1 without a context.
int lockstep_num_hosts();

// Meets the ranks of a group and makes its named lane (comm/named/named_lane.h), which the named ops of this `group`
// use: 0 for all ranks of the job, other numbers for process sets. Rank and size of the options are those in the group;
// the other arguments are fields of NamedLaneOptions. Warnings of stalls go to stderr. Blocks like lockstep_init.
// FAILED_PRECONDITION where the group has a lane; otherwise NamedLane::Create's errors.
int lockstep_open_lane(int group, const LockstepContextOptions* options, long long fusion_bytes,
                       double named_stall_warning_s, double named_stall_timeout_s, const char* label);

// Leaves the group, as lockstep_shutdown: what this rank waits for ends with CANCELLED, and the lane is gone when the
// kernels that wait are. Nothing without a lane.
int lockstep_close_lane(int group, const char* how = nullptr);

// Gives up the join that this rank waits in, with CANCELLED and `why`: for a program that is interrupted. Nothing
// without a lane or a join.
int lockstep_cancel_join(int group, const char* why);

// NamedLane::NextNumber of the group's lane; -1 without one, and the text of that error.
long long lockstep_next_number(int group, const char* text);

// 1 where the group has a lane that can't be used any more, as a rank died or left; else 0.
int lockstep_lane_is_broken(int group);

// Writes down what the group's lane does, into a file that viewers of Chrome traces show (comm/named/timeline.h): on
// rank 0 of the group; on the others nothing. `mark_cycles` is 0 or 1. FAILED_PRECONDITION without a lane; otherwise
// NamedLane::StartTimeline's errors. Stopping ends the file, as closing the lane does; nothing without a lane.
int lockstep_start_timeline(int group, const char* path, int mark_cycles);
int lockstep_stop_timeline(int group);

// CrashAt (base/crash_point.h), for tests that end their own process in the midst of its work.
int lockstep_crash_at(const char* point, int passes);

// "" after a call that went well. Belongs to the calling thread; valid until its next call of one that reports.
const char* lockstep_last_error();
}
#pragma GCC visibility pop

namespace lockstep {

// The process's one default context, which the TensorFlow ops use; FAILED_PRECONDITION that says how to make one.
// Shared, so that a shutdown cannot take it from under a running kernel. Hold it for the length of a call and not
// longer: the last owner that lets go ends the engine, and waits for what is posted on its lane. Takes a mutex for the
// time of a copy; thread-safe.
Result<std::shared_ptr<Context>> DefaultContext();

// The named lane of a group, to be held as DefaultContext; FAILED_PRECONDITION where there is none, also in a fork of
// the process that has it.
Result<std::shared_ptr<NamedLane>> NamedLaneOf(int group);

}  // namespace lockstep
