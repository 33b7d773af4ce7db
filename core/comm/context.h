#pragma once

#include <memory>
#include <string>

#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/comm/lane.h"
#include "core/comm/run_agreement.h"

namespace lockstep {

// Where this process stands in its job and how it talks to the others. Filled by the launcher's variables or by hand.
// size, rendezvous, secret, backend and shared_bytes_per_rank have to be the same on all ranks; other times may differ.
//
// The secret keeps strangers on the network out of the job. It should be random and new for each job: who sees the
// messages of the rendezvous can try guesses on them.
//
// shared_bytes_per_rank is what AllocateShared has to give on each rank. Too little is never an error: what finds no
// room goes through private memory, with a copy in and out. 0 switches shared buffers off. More costs nothing until it
// is used; used pages stay with the job to its end, and count towards a container's limit of memory.
//
// stall_timeout_s ends a job whose rank hangs; deaths are seen at once in any case. It has to be longer than the
// longest time that ranks may be apart, as while one of them writes a checkpoint.
// stopped_timeout_s ends a job one of whose processes is stopped (SIGSTOP, Ctrl-Z), and is waited for by a rank of its
// host. What a debugger holds does not count, nor do stops of all ranks at once. The same stops and those of other
// hosts are silence, where a job has several hosts. The silence timeout ends a job that has several hosts, one of which
// is cut off or frozen, whatever its ranks do meanwhile. It has to be longer than the cuts of the network that are to
// be survived, and the same on all ranks.
//
// end_after_loss_s ends the process of a rank that does something else than a collective, and so hears of no end, so
// long after a rank of a job on several hosts was lost (after_loss.h): for programs that have nothing to do then. Not
// for those that go on with the ranks that are left, nor where ranks are threads of a process.
//
// A listener is for ranks that are told at run time where to meet: rank 0 has the kernel pick a port and keeps it,
// where a port that is only known to be free may be another's a moment later.
struct ContextOptions {
  int rank = 0;
  int size = 1;                      // 1 to 512, of which a host takes 16
  std::string rendezvous;            // "host:port" of rank 0's rendezvous; unused when size is 1
  std::string secret;                // of the job: peers prove with HMAC that they know it; unused when size is 1
  std::string backend = "auto";      // LOCKSTEP_COMM; auto: shared memory on a host, Gloo between hosts
  double rendezvous_timeout_s = 60;  // how long to wait until all ranks are there
  double stall_timeout_s = 300;      // how long a rank may be late in a collective before the job ends
  double stopped_timeout_s = 5;  // how long a rank that is waited for may be stopped before the job ends; 0: no limit
  int64_t shared_bytes_per_rank = int64_t{1} << 30;  // of address space; memory is taken when it is used
  std::string purpose = "engine";  // what the ranks meet for, in one line: those that meet for another get an error
  std::string interface;  // name, address or network (interface.h) for data between hosts; "": as rank 0 is reached
  double silence_timeout_s = 8;  // how long a rank of another host may be cut off or frozen before the job ends
  double end_after_loss_s = 0;   // after a rank is lost, this process ends, if its program does not know yet; 0: never
  std::string host;  // tells hosts apart: ranks with the same one share memory; "": found out. For tests and containers
  // On rank 0: where it listens, "[::]:port" for all of the machine's addresses; "": at `rendezvous`.
  std::string listen;
  int listener = -1;  // on rank 0, a socket that listens at `rendezvous` already, the caller's; -1: none

  // INVALID_ARGUMENT that names the field, what it is and what it may be. Looks at the values alone: whether an address
  // can be reached is found out by Create, which calls this first.
  Status Validate() const;
};

// Meets the other ranks and connects, by the backend of the options: what Context::Create does, whose errors it
// returns. For those who want a communicator of their own (named_lane.h).
Result<std::unique_ptr<Communicator>> CreateCommunicator(const ContextOptions& options);

// The engine of one process: its communicator and the lane that runs its collectives. Everything hangs off it; nothing
// in the core is global, and a process may have several contexts (tests run the ranks of a job as threads). The one
// default context that ops use is kept by capi/capi.h.
//
//   LOCKSTEP_ASSIGN_OR_RETURN(const std::unique_ptr<Context> context, Context::Create(options));
//   context->lane().Post([&] { status = context->communicator().Barrier("start"); done.set_value(); });
//
// Owns what it hands out references to: communicator(), lane() and run_agreement() live as long as it does, and for
// what was posted on the lane the communicator and the agreement live until that has run. Thread-safe, where
// collectives go through the lane: the communicator takes one at a time.
class Context {
 public:
  // Meets the other ranks and connects. Waits for at most rendezvous_timeout_s, and up to 10 s longer for rank 0 to say
  // who is missing; the error names the ranks that are missing (DEADLINE_EXCEEDED). FAILED_PRECONDITION where settings
  // or secrets differ, or a rank is there twice; INVALID_ARGUMENT from Validate, or for an address that can't be
  // resolved; UNAVAILABLE where a rank can't be reached or goes away; RESOURCE_EXHAUSTED without memory. After an error
  // nothing is left behind.
  static Result<std::unique_ptr<Context>> Create(const ContextOptions& options);
  // Runs what is posted on the lane, then leaves the job (Communicator::Leave). To end at once, Leave or Abort first.
  // Where the lane's own work does it, by letting the last owner go, it does not wait: what is posted behind that work
  // runs later, and then the job is left.
  ~Context();

  const ContextOptions& options() const { return options_; }
  Communicator& communicator() { return *job_->communicator; }
  Lane& lane() { return *lane_; }
  // What the ranks of this job agreed on about the graphs that they run.
  RunAgreement& run_agreement() { return job_->run_agreement; }

 private:
  // What work on the lane refers to. The lane's thread has a share, so that it outlives the context where the last
  // owner of that goes on the lane.
  struct Job {
    std::unique_ptr<Communicator> communicator;
    RunAgreement run_agreement;
  };

  Context(ContextOptions options, std::unique_ptr<Communicator> communicator);

  const ContextOptions options_;
  std::shared_ptr<Job> job_;
  std::unique_ptr<Lane> lane_;
};

}  // namespace lockstep
