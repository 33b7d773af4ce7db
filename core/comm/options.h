#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/base/status.h"

// The folders of core/comm; each uses only folders below it. This header is below them all.
//
//   conformance/    tests and benchmarks of whole jobs, on every backend
//   named/          the named lane: collectives that ranks match by name
//   job/            the engine of a process, which chooses the backend; the ordered lane
//   hierarchical/   the communicator of several hosts: shm/ inside each host, gloo/ between hosts
//   shm/            the backend inside a host: shared memory
//   gloo/           the backend between hosts: TCP
//   liveness/       detection of lost ranks, and the end of a process after a loss
//   rendezvous/     ranks find and authenticate each other; addresses of a machine
//   collective/     the interface Communicator, and the parts that all backends share

namespace lockstep {

class Telemetry;  // core/telemetry/telemetry.h

// The most ranks of a job: the largest answer of a rendezvous has room for as many.
inline constexpr int kMaxRanksPerJob = 512;
// The most ranks that share memory on a host.
inline constexpr int kMaxRanksPerHost = 16;

// This process's place in its job and its ways to reach the others. Set by the launcher's variables or by hand. size,
// rendezvous, secret, backend and shared_bytes_per_rank have to be the same on all ranks; most times may differ.
//
// The secret keeps other programs on the network out of the job. It should be random and new for each job: a listener
// that sees the messages of the rendezvous can test guesses on them.
//
// shared_bytes_per_rank is the memory for AllocateShared on each rank. Too little is never an error: data without room
// goes through private memory, with a copy in and out. 0 switches shared buffers off. A larger value costs nothing
// until it is used. Used pages stay with the job until its end, and count towards a container's limit of memory.
//
// stall_timeout_s ends a job whose rank hangs; deaths are seen at once in any case. It has to be longer than the
// longest time for which a rank may fall behind, for instance while one writes a checkpoint.
//
// stopped_timeout_s ends a job if a rank's process is stopped (SIGSTOP, Ctrl-Z) while a rank of its host waits for it.
// A process held by a debugger does not count, and neither do stops of all ranks at once.
//
// silence_timeout_s ends a job of several hosts if one of them is cut off or frozen, even if its ranks are outside of
// collectives. A stopped process of any host counts as silent, too. It has to be longer than the network failures that
// the job should survive, and the same on all ranks.
//
// end_after_loss_s is for a rank that runs no collective and so gets no error. Its process ends that long after another
// rank of a job on several hosts was lost (liveness/after_loss.h). It is for programs that have nothing left to do
// then. Do not use it for programs that continue with the remaining ranks, or if ranks are threads of a process.
//
// A listener is for ranks that learn the rendezvous' address at run time. Rank 0 lets the kernel choose a port and
// keeps it; a port that is only known to be free may be taken by another process a moment later.
struct ContextOptions {
  int rank = 0;
  int size = 1;                      // 1 to 512, at most 16 on each host
  std::string rendezvous;            // "host:port" of rank 0's rendezvous; unused when size is 1
  std::string secret;                // of the job; peers prove by HMAC that they know it; unused when size is 1
  std::string backend = "auto";      // LOCKSTEP_COMM; auto: shared memory on a host, Gloo between hosts
  double rendezvous_timeout_s = 60;  // time to wait for all ranks
  double stall_timeout_s = 300;      // how late a rank may be in a collective before the job ends
  // How long a needed rank may be stopped before the job ends; no value: as long as it may be late.
  std::optional<double> stopped_timeout_s = 5;
  int64_t shared_bytes_per_rank = int64_t{1} << 30;  // address space; memory is taken when it is used
  std::string purpose = "engine";  // purpose of the rendezvous, in one line; ranks with another one get an error
  // The backend of this rank's device (core/device/comm), the same on all ranks; "": its tensors are on the CPU.
  std::string device = {};
  // With 'nccl': the communicators of each lane, which take turns; and whether NCCL adds in its own order. The same on
  // all ranks (core/device/comm/device_communicator.h).
  int device_channels = 1;
  bool native_sums = false;
  std::string interface;  // name, address or network (rendezvous/network_addresses.h) for data between hosts; "": as
                          // rank 0 is reached
  double silence_timeout_s = 8;  // how long a rank of another host may be cut off or frozen before the job ends
  // The time after a rank's loss at which this process ends, if its program does not know of the loss yet; no value:
  // the process is not ended.
  std::optional<double> end_after_loss_s;
  std::string host;  // ranks with the same text share memory; "": detected. For tests and containers
  // On rank 0, the address at which it listens: "[::]:port" for all addresses of the machine; "": `rendezvous`.
  std::string listen;
  // On rank 0, the caller's socket that already listens at `rendezvous`; no value: rank 0 opens one.
  std::optional<int> listener;
  // On rank 0, a port that this process keeps at the rendezvous' host for a later rendezvous of the job; the others
  // learn it when they join (job/background_lane.h). 0: none.
  int later_port = 0;
  // The folder for the timeline of each rank (telemetry/trace_file.h), the same or none on all ranks; "": no timeline.
  std::string timeline;
  // Called some times a second while the ranks meet, if it is not null; its error ends the wait.
  std::function<Status()> ended = nullptr;
  // Counts what this process does; null: a telemetry of the communicator's own.
  std::shared_ptr<Telemetry> telemetry = nullptr;

  // Returns INVALID_ARGUMENT with the field, its value and the allowed values. It checks only the values. Create calls
  // it first, and then finds out whether an address can be reached.
  Status Validate() const;
};

}  // namespace lockstep
