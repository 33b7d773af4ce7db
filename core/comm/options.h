#pragma once

#include <cstdint>
#include <string>

#include "core/base/status.h"

// The folders of core/comm, each above all that it uses. This header is below them all.
//
//   conformance/    tests and benchmarks of whole jobs, on every backend
//   named/          the named lane: collectives that ranks match by name
//   job/            the engine of a process: it chooses the backend; the ordered lane
//   hierarchical/   the communicator of several hosts: shm/ inside each host, gloo/ between hosts
//   shm/            the backend inside a host: shared memory
//   gloo/           the backend between hosts: TCP
//   liveness/       who is alive, and how a process ends after a loss
//   rendezvous/     how ranks find and authenticate each other; addresses of a machine
//   collective/     the interface Communicator, and the parts that all backends share

namespace lockstep {

// The most ranks of a job, which is as many as the largest answer of a rendezvous has room for.
inline constexpr int kMaxRanksPerJob = 512;
// The most ranks that share memory on a host.
inline constexpr int kMaxRanksPerHost = 16;

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
// long after a rank of a job on several hosts was lost (liveness/after_loss.h): for programs that have nothing to do
// then. Not for those that go on with the ranks that are left, nor where ranks are threads of a process.
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
  std::string interface;  // name, address or network (rendezvous/network_addresses.h) for data between hosts; "": as
                          // rank 0 is reached
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

}  // namespace lockstep
