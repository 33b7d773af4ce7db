#include "core/capi/capi.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "core/base/crash_point.h"
#include "core/base/fork_guard.h"
#include "core/base/mutex.h"
#include "core/base/strings.h"
#include "core/capi/apart_warning.h"
#include "core/capi/process_device.h"
#include "core/comm/liveness/after_loss.h"
#include "core/comm/liveness/peer_end.h"
#include "core/comm/options.h"
#include "core/device/named/named_exchange_on_device.h"

// The functions of capi.h are a thin shell. They turn C strings into options, and a Status into a code and a text of
// the thread. They keep the pointers to the default context and the lanes. Context, Communicator and NamedLane do the
// work.

namespace lockstep {
namespace {

// The process-wide state: the default context, and below the named lane of each group.
struct Holder {
  Mutex mutex;
  std::shared_ptr<Context> context LOCKSTEP_GUARDED_BY(mutex);
  long long number LOCKSTEP_GUARDED_BY(mutex) = 0;  // of the contexts that were made
};

struct Lanes {
  const ForkGuard fork;
  const bool in_fork;
  Mutex mutex;
  std::map<int, std::shared_ptr<NamedLane>> of_groups LOCKSTEP_GUARDED_BY(mutex);
};

// Never destroyed: no destructor may wait for a lane's thread at the end of the process, or in a fork that exits. A
// program that wants a farewell message calls lockstep_shutdown.
Holder& TheHolder() {
  static Holder* const holder = new Holder;
  return *holder;
}

// A fork gets lanes of its own. The parent's are not touched, because the threads that may hold their lock are not
// here.
Lanes& TheLanes() {
  static std::atomic<Lanes*> current{new Lanes{{}, false, {}, {}}};
  Lanes* lanes = current.load(std::memory_order_acquire);
  if (!lanes->fork.InFork()) return *lanes;
  Lanes* const own = new Lanes{{}, true, {}, {}};
  if (current.compare_exchange_strong(lanes, own, std::memory_order_acq_rel)) return *own;
  delete own;
  return *lanes;
}

// Never destroyed, like the holder. The timeline ends with the last context or lane.
struct Counted {
  const ForkGuard fork;
  const std::shared_ptr<Telemetry> telemetry = std::make_shared<Telemetry>();
};

thread_local std::string last_error;

// Ends every function that can fail: keeps the text for lockstep_last_error and returns the code.
int Report(const Status& status) {
  last_error = status.ok() ? "" : status.message();
  return static_cast<int>(status.code());
}

std::shared_ptr<Context> CurrentContext() {
  Holder& holder = TheHolder();
  const MutexLock lock(holder.mutex);
  return holder.context;
}

// Returns the context with a number, which no other one of this process has.
Result<std::shared_ptr<Context>> NumberedContext(long long number) {
  Holder& holder = TheHolder();
  const MutexLock lock(holder.mutex);
  if (holder.number != number || holder.context == nullptr) return Cancelled("this rank has left the job");
  return holder.context;
}

// Checks twice whether there is a context. The first check, before the rendezvous, fails at once instead of after a
// minute of waiting. The second check is needed because two threads may have joined at the same time. The second thread
// loses, and its context's destructor leaves the job.
Status Init(const ContextOptions& options) {
  if (CurrentContext() != nullptr) {
    return FailedPrecondition("Lockstep is already initialised; shut it down before another init");
  }
  ProcessApartWarning().NoteJoining();
  peer_end::Forget();
  // The lock is not held during the rendezvous, so that rank() and the like answer meanwhile.
  LOCKSTEP_ASSIGN_OR_RETURN(std::shared_ptr<Context> context, Context::Create(options));
  Holder& holder = TheHolder();
  const MutexLock lock(holder.mutex);
  if (holder.context != nullptr) return FailedPrecondition("Lockstep was initialised by another thread meanwhile");
  holder.context = std::move(context);
  ++holder.number;
  return OkStatus();
}

std::shared_ptr<NamedLane> CurrentLane(int group) {
  Lanes& lanes = TheLanes();
  const MutexLock lock(lanes.mutex);
  const auto found = lanes.of_groups.find(group);
  return found == lanes.of_groups.end() ? nullptr : found->second;
}

// Like Init, checks twice.
Status OpenLane(int group, const ContextOptions& options, const NamedLaneOptions& lane_options) {
  const auto taken = [&] { return FailedPrecondition(StrCat("group ", group, " has a named lane already")); };
  if (CurrentLane(group) != nullptr) return taken();
  ProcessApartWarning().NoteJoining();
  LOCKSTEP_ASSIGN_OR_RETURN(std::shared_ptr<NamedLane> lane, NamedLane::Create(options, lane_options));
  Lanes& lanes = TheLanes();
  const MutexLock lock(lanes.mutex);
  return lanes.of_groups.try_emplace(group, std::move(lane)).second ? OkStatus() : taken();
}

std::string TextOf(const char* text) { return text == nullptr ? "" : text; }

// Returns the time; other numbers than LOCKSTEP_NEVER_S are passed on, so that ContextOptions::Validate judges them.
std::optional<double> TimeOf(double seconds) {
  return seconds == LOCKSTEP_NEVER_S ? std::nullopt : std::optional(seconds);
}

// Returns the time of a named lane, which nothing checks: numbers below LOCKSTEP_NEVER_S mean the same as it.
std::optional<double> StallTimeOf(double seconds) {
  return seconds > LOCKSTEP_NEVER_S ? std::optional(seconds) : std::nullopt;
}

// Returns a function that creates a lane's exchange for tensors on this process's GPU, which is known at the first such
// tensor. A process without the library for GPUs declines, so that all ranks get the reason.
MakeNamedDeviceExchange DevicesOfLane(const ContextOptions& job, int64_t fusion_bytes) {
  return [job, fusion_bytes](Communicator& host, MessageLinks& links) -> Result<std::unique_ptr<NamedDeviceExchange>> {
    const Result<device::CommOptions> devices = DeviceCommOptions(job);
    if (!devices.ok()) return host.Decline("start of devices", devices.status());
    return device::NamedExchangeOnDevice({.devices = *devices, .fusion_bytes = fusion_bytes})(host, links);
  };
}

std::optional<int> ListenerOf(int listener) {
  return listener > LOCKSTEP_NO_LISTENER ? std::optional(listener) : std::nullopt;
}

ContextOptions OptionsOf(const LockstepContextOptions& options) {
  return {.rank = options.rank,
          .size = options.size,
          .rendezvous = TextOf(options.rendezvous),
          .secret = TextOf(options.secret),
          .backend = TextOf(options.backend),
          .rendezvous_timeout_s = options.rendezvous_timeout_s,
          .stall_timeout_s = options.stall_timeout_s,
          .stopped_timeout_s = TimeOf(options.stopped_timeout_s),
          .shared_bytes_per_rank = options.shared_bytes_per_rank,
          .device = TextOf(options.device_backend),
          .device_channels = options.device_channels,
          .native_sums = options.device_native_sums != 0,
          .interface = TextOf(options.interface),
          .silence_timeout_s = options.silence_timeout_s,
          .end_after_loss_s = TimeOf(options.end_after_loss_s),
          .host = TextOf(options.host),
          .listen = TextOf(options.listen),
          .listener = ListenerOf(options.listener),
          .timeline = TextOf(options.timeline),
          .telemetry = ProcessTelemetry()};
}

}  // namespace

// The parent's locks may be held by threads that a fork does not have.
const std::shared_ptr<Telemetry>& ProcessTelemetry() {
  static std::atomic<Counted*> current{new Counted};
  Counted* counted = current.load(std::memory_order_acquire);
  if (!counted->fork.InFork()) return counted->telemetry;
  Counted* const own = new Counted;
  if (current.compare_exchange_strong(counted, own, std::memory_order_acq_rel)) return own->telemetry;
  delete own;
  return counted->telemetry;
}

Result<std::shared_ptr<Context>> DefaultContext() {
  std::shared_ptr<Context> context = CurrentContext();
  if (context == nullptr) {
    return FailedPrecondition(
        "Lockstep is not initialised in this process: enter lockstep.scope() first, or call lockstep.init()");
  }
  return context;
}

Result<std::shared_ptr<NamedLane>> NamedLaneOf(int group) {
  std::shared_ptr<NamedLane> lane = CurrentLane(group);
  if (lane == nullptr && TheLanes().in_fork) {
    return FailedPrecondition(
        "the named collectives are not initialized in this process: it is a fork of the one that joined the job, "
        "and a fork cannot take part in its collectives");
  }
  if (lane == nullptr) {
    return FailedPrecondition(group == 0 ? "the named collectives are not initialized: call init() first"
                                         : StrCat("this rank has no process set ", group));
  }
  return lane;
}

}  // namespace lockstep

using lockstep::Report;
using lockstep::TextOf;

int lockstep_init(const LockstepContextOptions* options) {
  return Report(lockstep::Init(lockstep::OptionsOf(*options)));
}

int lockstep_open_lane(int group, const LockstepContextOptions* options, long long fusion_bytes,
                       double named_stall_warning_s, double named_stall_timeout_s, const char* label) {
  const auto warn = [](const std::string& text) { std::fprintf(stderr, "lockstep: %s\n", text.c_str()); };
  const lockstep::ContextOptions job = lockstep::OptionsOf(*options);
  if (group == 0) lockstep::peer_end::Forget();
  return Report(lockstep::OpenLane(group, job,
                                   {.fusion_bytes = fusion_bytes,
                                    .stall_warning_s = lockstep::StallTimeOf(named_stall_warning_s),
                                    .stall_timeout_s = lockstep::StallTimeOf(named_stall_timeout_s),
                                    .label = TextOf(label),
                                    .warn = warn,
                                    .devices = lockstep::DevicesOfLane(job, fusion_bytes)}));
}

int lockstep_close_lane(int group, const char* how) {
  std::shared_ptr<lockstep::NamedLane> lane;
  {
    lockstep::Lanes& lanes = lockstep::TheLanes();
    const lockstep::MutexLock lock(lanes.mutex);
    const auto found = lanes.of_groups.find(group);
    if (found != lanes.of_groups.end()) {
      lane = std::move(found->second);
      lanes.of_groups.erase(found);
    }
  }
  if (lane != nullptr) lane->Leave(TextOf(how));
  return Report(lockstep::OkStatus());
}

int lockstep_cancel_join(int group, const char* why) {
  const std::shared_ptr<lockstep::NamedLane> lane = lockstep::CurrentLane(group);
  if (lane != nullptr) lane->CancelJoin(TextOf(why));
  return Report(lockstep::OkStatus());
}

long long lockstep_next_number(int group, const char* text) {
  const auto lane = lockstep::NamedLaneOf(group);
  Report(lane.status());
  return lane.ok() ? static_cast<long long>((*lane)->NextNumber(TextOf(text))) : LOCKSTEP_NO_NUMBER;
}

const char* lockstep_lost_peer(const char* text) {
  thread_local std::string why;
  why = lockstep::peer_end::In(TextOf(text));
  return why.c_str();  // NOLINT(clang-analyzer-cplusplus.InnerPointer): belongs to the thread, until its next call
}

int lockstep_lane_is_broken(int group) {
  const std::shared_ptr<lockstep::NamedLane> lane = lockstep::CurrentLane(group);
  return lane != nullptr && !lane->broken().ok();
}

int lockstep_start_timeline(int group, const char* path, int mark_cycles) {
  const auto lane = lockstep::NamedLaneOf(group);
  return Report(lane.ok() ? (*lane)->StartTimeline(TextOf(path), mark_cycles != 0) : lane.status());
}

int lockstep_stop_timeline(int group) {
  const std::shared_ptr<lockstep::NamedLane> lane = lockstep::CurrentLane(group);
  return Report(lane == nullptr ? lockstep::OkStatus() : lane->StopTimeline());
}

// Takes the pointer out under the lock; everything that may wait happens without it.
int lockstep_shutdown(const char* how) {
  std::shared_ptr<lockstep::Context> context;
  {
    lockstep::Holder& holder = lockstep::TheHolder();
    const lockstep::MutexLock lock(holder.mutex);
    context = std::move(holder.context);
    holder.context = nullptr;
  }
  if (context == nullptr) return Report(lockstep::OkStatus());
  // Kernels may hold the context a little longer. Their waits end now.
  context->Leave(TextOf(how));
  return Report(lockstep::OkStatus());
}

long long lockstep_context_number() {
  lockstep::Holder& holder = lockstep::TheHolder();
  const lockstep::MutexLock lock(holder.mutex);
  return holder.context == nullptr ? 0 : holder.number;
}

int lockstep_await_background(long long number, double seconds) {
  const auto context = lockstep::NumberedContext(number);
  if (!context.ok()) return Report(context.status());
  const std::optional<lockstep::Status> ended = (*context)->AwaitBackground(seconds);
  return ended ? Report(*ended) : LOCKSTEP_STILL_RUNS;
}

int lockstep_barrier_in_background(long long number, const char* error) {
  const auto context = lockstep::NumberedContext(number);
  if (!context.ok()) return Report(context.status());
  const auto barrier = [why = TextOf(error)](lockstep::Communicator& communicator) {
    constexpr char kName[] = "end of background work";
    return why.empty() ? communicator.Barrier(kName) : communicator.Decline(kName, lockstep::Cancelled(why));
  };
  (*context)->background().Post(barrier, [] {});
  return Report(lockstep::OkStatus());
}

int lockstep_end_within(double seconds, int code) {
  try {
    std::thread([seconds, code] {
      std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
      if (code < 0) {
        signal(-code, SIG_DFL);
        kill(getpid(), -code);
      }
      std::_Exit(code);
    }).detach();
  } catch (const std::system_error& error) {
    return Report(lockstep::ResourceExhausted(lockstep::StrCat("no thread to end the process: ", error.what())));
  }
  return Report(lockstep::OkStatus());
}

int lockstep_abort(const char* reason) {
  const lockstep::Result<std::shared_ptr<lockstep::Context>> context = lockstep::DefaultContext();
  if (!context.ok()) return Report(context.status());
  lockstep::AfterLoss::ProgramKnows();
  // Calls the communicators, not the lanes, because the collective to be aborted may run there. Abort is for any
  // thread.
  (*context)->Abort(lockstep::Cancelled(TextOf(reason)));
  return Report(lockstep::OkStatus());
}

const char* lockstep_counters() {
  thread_local std::string counters;
  counters = lockstep::ProcessTelemetry()->Json();
  return counters.c_str();  // NOLINT(clang-analyzer-cplusplus.InnerPointer): belongs to the thread, until its next call
}

int lockstep_end_step() {
  lockstep::ProcessTelemetry()->EndStep();
  return Report(lockstep::OkStatus());
}

int lockstep_set_table_size(const char* table, long long rows, long long bytes) {
  lockstep::ProcessTelemetry()->Table(TextOf(table)).SetSize(rows, bytes);
  return Report(lockstep::OkStatus());
}

int lockstep_crash_at(const char* point, int passes) { return Report(lockstep::CrashAt(TextOf(point), passes)); }

int lockstep_is_initialized() { return lockstep::CurrentContext() != nullptr; }

int lockstep_rank() {
  const std::shared_ptr<lockstep::Context> context = lockstep::CurrentContext();
  return context == nullptr ? LOCKSTEP_NO_CONTEXT : context->communicator().rank();
}

int lockstep_size() {
  const std::shared_ptr<lockstep::Context> context = lockstep::CurrentContext();
  return context == nullptr ? LOCKSTEP_NO_CONTEXT : context->communicator().size();
}

int lockstep_num_hosts() {
  const std::shared_ptr<lockstep::Context> context = lockstep::CurrentContext();
  return context == nullptr ? LOCKSTEP_NO_CONTEXT : context->communicator().num_hosts();
}

const char* lockstep_last_error() { return lockstep::last_error.c_str(); }
