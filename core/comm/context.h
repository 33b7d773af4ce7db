#pragma once

#include <memory>
#include <string>

#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/comm/lane.h"
#include "core/comm/run_agreement.h"

namespace lockstep {

// Where this process stands in its job and how it talks to the others. Filled by the launcher's variables or by hand.
struct ContextOptions {
  int rank = 0;
  int size = 1;                          // 1 to 16
  std::string rendezvous;                // "host:port" of rank 0's rendezvous; unused when size is 1
  std::string secret;                    // of the job: peers prove with HMAC that they know it; unused when size is 1
  std::string backend = "shm";           // LOCKSTEP_COMM
  double rendezvous_timeout_s = 60;      // how long to wait until all ranks are there
  double stall_timeout_s = 300;          // how long a rank may be late in a collective before the job ends
  int64_t shared_bytes_per_rank = int64_t{1} << 30;  // of address space; memory is taken when it is used

  // INVALID_ARGUMENT that names the field, what it is and what it may be.
  Status Validate() const;
};

// The engine of one process: its communicator and the lane that runs its collectives. Everything hangs off it; nothing in
// the core is global. Thread-safe.
class Context {
 public:
  // Meets the other ranks and connects. Waits for at most rendezvous_timeout_s; the error names the ranks that are missing.
  static Result<std::unique_ptr<Context>> Create(const ContextOptions& options);
  ~Context();

  const ContextOptions& options() const { return options_; }
  Communicator& communicator() { return *communicator_; }
  Lane& lane() { return *lane_; }
  // What the ranks of this job agreed on about the graphs that they run.
  RunAgreement& run_agreement() { return run_agreement_; }

 private:
  Context(ContextOptions options, std::unique_ptr<Communicator> communicator);

  const ContextOptions options_;
  std::unique_ptr<Communicator> communicator_;
  RunAgreement run_agreement_;
  std::unique_ptr<Lane> lane_;
};

}  // namespace lockstep
