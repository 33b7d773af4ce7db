#include "core/device/comm/nccl_communicator.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/strings.h"
#include "core/comm/liveness/after_loss.h"
#include "core/comm/liveness/peer_end.h"

// The start, the comparison of calls, and the ends. nccl_collectives.cc has the collectives themselves.

namespace lockstep::device {
namespace {

// How often a function of NCCL that is still connecting is looked at.
constexpr auto kConnectingSleep = std::chrono::microseconds(50);

}  // namespace

NcclCommunicator::NcclCommunicator(const CommOptions& options, Communicator& host, std::shared_ptr<const nccl::Api> api)
    : DeviceCommunicator(host), options_(options), library_(*options.library), api_(std::move(api)) {}

// A rank that cannot take part declines, so that all ranks get its reason.
Result<std::unique_ptr<DeviceCommunicator>> NcclCommunicator::Create(const CommOptions& options, Communicator& host) {
  auto api = nccl::Load(options.nccl);
  std::unique_ptr<NcclCommunicator> communicator(new NcclCommunicator(options, host, api.ok() ? *api : nullptr));
  LOCKSTEP_RETURN_IF_ERROR(communicator->Connect(api.status()));
  return std::unique_ptr<DeviceCommunicator>(std::move(communicator));
}

Status NcclCommunicator::Connect(Status loaded) {
  const std::string name = StrCat("start of devices with nccl, ", options_.channels, " channels",
                                  options_.native_sums ? ", native sums" : "");
  if (loaded.ok()) loaded = UseDevice();
  channels_.resize(static_cast<size_t>(options_.channels));
  for (Channel& channel : channels_) {
    if (loaded.ok()) loaded = ToStatus(library_, library_.create_stream(&channel.stream), "create_stream");
  }
  if (!loaded.ok()) return host_.Decline(name, loaded);
  const int64_t pid = getpid();
  LOCKSTEP_ASSIGN_OR_RETURN(std::vector<int64_t> pids,
                            host_.Compare({.kind = CallKind::kBarrier, .name = name}, std::span(&pid, 1)));
  Progress::Hooks hooks;
  hooks.watch = std::make_unique<PeerWatch>(host_, std::move(pids), options_.stall_timeout_s, options_.links);
  hooks.look = [this] {
    const MutexLock lock(nccl_mutex_);
    for (const Channel& channel : channels_) {
      nccl::Code code = nccl::kSuccess;
      if (channel.comm == nullptr || api_->CommGetAsyncError(channel.comm, &code) != nccl::kSuccess) continue;
      if (code != nccl::kSuccess && code != nccl::kInProgress) return NcclError(code, "a kernel");
    }
    return OkStatus();
  };
  hooks.on_failure = [this](const Status& why, bool is_peers) {
    (void)Break(why, is_peers ? OkStatus() : why.WithPrefix(StrCat("rank ", rank(), " gave up: ")), false);
  };
  progress_ = std::make_unique<Progress>(library_, options_.device, std::move(hooks));
  if (size() == 1 && !options_.native_sums) return OkStatus();
  Status status;
  for (Channel& channel : channels_) {
    channel.operation = StrCat("barrier '", name, "'");
    if (status.ok()) status = ConnectChannel(channel);
  }
  if (!status.ok()) return BreakFor(status, channels_.front().operation);
  // All ranks are connected, or none is.
  return CheckHost(host_.Barrier(name));
}

Status NcclCommunicator::ConnectChannel(Channel& channel) {
  nccl::UniqueId id = {};
  const char* const name = "NCCL's id";
  if (rank() == 0) {
    const nccl::Code code = api_->GetUniqueId(&id);
    if (code != nccl::kSuccess) return CheckHost(host_.Decline(name, NcclError(code, "ncclGetUniqueId")));
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckHost(host_.Broadcast(name, 0, sizeof(id), &id)));
  {
    const MutexLock lock(nccl_mutex_);
    nccl::Config config;
    const nccl::Code code = api_->CommInitRankConfig(&channel.comm, size(), id, rank(), &config);
    if (code != nccl::kSuccess && code != nccl::kInProgress) return NcclError(code, "ncclCommInitRankConfig");
  }
  return AwaitConnection(channel, options_.start_timeout_s);
}

// NCCL starts each group on a thread of its own, which takes some microseconds. The first messages between two ranks
// connect them, which takes long: then the peers are watched.
Status NcclCommunicator::AwaitConnection(Channel& channel, double seconds) {
  constexpr double kBriefly_s = 0.001;
  const Deadline deadline = Deadline::After(seconds);
  bool is_watched = false;
  while (true) {
    nccl::Code state = nccl::kSuccess;
    const Status status = StateOf(channel, &state);
    if (!status.ok() || state == nccl::kSuccess) {
      if (is_watched) progress_->set_connecting("");
      return status;
    }
    if (deadline.Elapsed() < kBriefly_s) {
      std::this_thread::yield();
      continue;
    }
    if (!std::exchange(is_watched, true)) progress_->set_connecting(channel.operation);
    if (deadline.Passed()) {
      progress_->set_connecting("");
      return DeadlineExceeded(StrCat("rank ", rank(), ": NCCL has not connected the ranks within ", seconds, " s"));
    }
    std::this_thread::sleep_for(kConnectingSleep);
  }
}

Status NcclCommunicator::StateOf(const Channel& channel, nccl::Code* state) {
  const MutexLock lock(nccl_mutex_);
  if (is_broken_ || channel.comm == nullptr) return broken();
  const nccl::Code code = api_->CommGetAsyncError(channel.comm, state);
  if (code != nccl::kSuccess) return NcclError(code, "ncclCommGetAsyncError");
  return *state == nccl::kSuccess || *state == nccl::kInProgress ? OkStatus() : NcclError(*state, "connecting");
}

// The thread of progress ends first: it uses the communicators. It has seen all calls end.
NcclCommunicator::~NcclCommunicator() {
  constexpr double kEnd_s = 3;
  if (progress_ != nullptr) progress_->Close();
  EndNccl(/*is_abort=*/false);
  endings_.Await(kEnd_s);
  (void)UseDevice();
  for (Channel& channel : channels_) {
    if (channel.stream != nullptr) (void)library_.destroy_stream(channel.stream);  // nothing is left in it
  }
}

void Endings::Start(std::function<void()> end) {
  {
    const MutexLock lock(state_->mutex);
    ++state_->running;
  }
  std::thread([state = state_, end = std::move(end)] {
    end();
    const MutexLock lock(state->mutex);
    --state->running;
    state->changed.NotifyAll();
  }).detach();
}

void Endings::Await(double seconds) {
  const Deadline deadline = Deadline::After(seconds);
  const MutexLock lock(state_->mutex);
  while (state_->running > 0 && !deadline.Passed()) {
    (void)state_->changed.WaitFor(state_->mutex, std::chrono::duration<double>(deadline.Left()));
  }
}

// NCCL frees a communicator's memory, which waits for all work of the device: also for the kernels of others, until
// these are aborted as well. So nobody waits for one before all have begun. A rank whose peers have gone must not wait
// for them: what has not ended in a moment is aborted.
void NcclCommunicator::EndNccl(bool is_abort) {
  constexpr double kFinalize_s = 2;
  const MutexLock lock(nccl_mutex_);
  for (Channel& channel : channels_) {
    if (channel.comm == nullptr) continue;
    endings_.Start([api = api_, comm = std::exchange(channel.comm, nullptr), is_abort] {
      const Deadline deadline = Deadline::After(kFinalize_s);
      nccl::Code state = is_abort ? nccl::kInProgress : api->CommFinalize(comm);
      while (!is_abort && state == nccl::kInProgress && !deadline.Passed()) {
        std::this_thread::sleep_for(kConnectingSleep);
        if (api->CommGetAsyncError(comm, &state) != nccl::kSuccess) break;
      }
      (void)(state == nccl::kSuccess ? api->CommDestroy(comm) : api->CommAbort(comm));  // this is the end in any case
    });
  }
}

Status NcclCommunicator::broken() const {
  const MutexLock lock(mutex_);
  return broken_;
}

Status NcclCommunicator::BreakFor(const Status& error, const std::string& operation) {
  constexpr auto kSleep = std::chrono::milliseconds(1);
  const Deadline deadline = Deadline::After(Progress::kPatience_s);
  progress_->set_connecting(operation);
  while (!is_broken_ && !deadline.Passed()) std::this_thread::sleep_for(kSleep);
  progress_->set_connecting("");
  return Break(error);
}

Status NcclCommunicator::Break(const Status& why) {
  return Break(why, why.WithPrefix(StrCat("rank ", rank(), " gave up: ")), false);
}

// The calls get their error first: kernels that return because of the abort are then known to have failed.
Status NcclCommunicator::Break(const Status& why, const Status& for_peers, bool is_abort) {
  bool has_left;
  {
    const MutexLock lock(mutex_);
    if (!broken_.ok()) return broken_;
    broken_ = why;
    has_left = has_left_;
    is_broken_ = true;
  }
  const bool had_calls = progress_ != nullptr && progress_->End(why);
  if (!has_left) {
    if (progress_ != nullptr && !for_peers.ok()) progress_->watch()->TellEnd(for_peers);
    if (!is_abort) {
      host_.End(why);
      peer_end::Note(why);
    }
  }
  if (had_calls) AfterLoss::ProgramKnows();
  EndNccl(/*is_abort=*/true);
  return why;
}

void NcclCommunicator::Abort(const Status& why) {
  const std::string reason = why.code() == StatusCode::kCancelled ? why.message() : why.ToString();
  // Peers that were told that this rank has left are not told another end.
  (void)Break(Cancelled(reason), Cancelled(StrCat("rank ", rank(), " aborted the job: ", reason)), true);
  host_.Abort(why);
}

void NcclCommunicator::Leave(std::string_view how) {
  {
    const MutexLock lock(mutex_);
    has_left_ = true;
  }
  progress_->TellLeft(how);
  host_.Leave(how);
}

Status NcclCommunicator::NcclError(nccl::Code code, const char* what) const {
  return Internal(StrCat("rank ", rank(), ": NCCL ", api_->version, " (", api_->place, "): ", what, ": ",
                         api_->GetErrorString(code)));
}

Status NcclCommunicator::UseDevice() const {
  return ToStatus(library_, library_.set_device(options_.device), "set_device");
}

Status NcclCommunicator::CheckHost(const Status& status) {
  if (status.ok() || !host_.broken()) return status;
  AfterLoss::ProgramKnows();
  return Break(status);
}

Result<std::vector<int64_t>> NcclCommunicator::Compare(const Call& call, std::span<const int64_t> values) {
  if (Status why = broken(); !why.ok()) {
    AfterLoss::ProgramKnows();
    return why;
  }
  auto all = host_.Compare(call, values);
  if (!all.ok()) return CheckHost(all.status());
  return all;
}

Status NcclCommunicator::Barrier(std::string_view name) {
  return Compare({.kind = CallKind::kBarrier, .name = name}, {}).status();
}

Status NcclCommunicator::Decline(std::string_view name, const Status& why) {
  LOCKSTEP_RETURN_IF_ERROR(broken());
  return CheckHost(host_.Decline(name, why));
}

Result<NcclCommunicator::Turn> NcclCommunicator::Begin(const Call& call, std::span<const int64_t> values,
                                                       int64_t scratch_bytes, Stream after) {
  if (Status why = broken(); !why.ok()) return why;
  Channel& channel = channels_[next_channel_];
  auto prepared = Prepare(call, channel, scratch_bytes);
  if (prepared.ok() && after != nullptr) {
    const Status status = ToStatus(library_, library_.record_event((*prepared)->begun(), after), "record_event");
    if (!status.ok()) prepared = status;
  }
  if (!prepared.ok()) return Decline(call.name, prepared.status());
  Turn turn = {&channel, *std::move(prepared), {}};
  LOCKSTEP_ASSIGN_OR_RETURN(turn.values, Compare(call, values));
  next_channel_ = (next_channel_ + 1) % channels_.size();
  channel.operation = turn.call->operation();
  Status status;
  if (after != nullptr)
    status = ToStatus(library_, library_.wait_event(channel.stream, turn.call->begun()), "wait_event");
  if (status.ok())
    status = ToStatus(library_, library_.record_event(turn.call->begun(), channel.stream), "record_event");
  if (!status.ok()) return Break(status.WithPrefix(StrCat("rank ", rank(), ": ", turn.call->operation(), ": ")));
  return turn;
}

Result<std::shared_ptr<PendingCall>> NcclCommunicator::Prepare(const Call& call, Channel& channel,
                                                               int64_t scratch_bytes) {
  LOCKSTEP_RETURN_IF_ERROR(UseDevice());
  if (scratch_bytes > channel.scratch_bytes) {
    // Growing by half keeps what is outgrown below twice the last size.
    const int64_t bytes = std::max(scratch_bytes, channel.scratch_bytes + channel.scratch_bytes / 2);
    std::shared_ptr<void> scratch;
    if (options_.allocate != nullptr) {
      LOCKSTEP_ASSIGN_OR_RETURN(scratch, options_.allocate(bytes));
    } else {
      void* memory = nullptr;
      LOCKSTEP_RETURN_IF_ERROR(ToStatus(library_, library_.allocate(bytes, &memory), "allocate"));
      scratch = std::shared_ptr<void>(memory, [this](void* old) { (void)library_.deallocate(old); });
    }
    if (channel.scratch != nullptr) channel.outgrown.push_back(std::move(channel.scratch));
    channel.scratch = std::move(scratch);
    channel.scratch_bytes = bytes;
  }
  return PendingCall::Create(library_, StrCat(CallKindName(call.kind), " '", call.name, "'"));
}

Result<Ticket> NcclCommunicator::End(Turn turn, const Status& enqueued) {
  Status status = enqueued;
  if (status.ok()) {
    status = ToStatus(library_, library_.record_event(turn.call->ended(), turn.channel->stream), "record_event");
  }
  if (!status.ok()) {
    return BreakFor(status.WithPrefix(StrCat("rank ", rank(), ": ", turn.call->operation(), ": ")),
                    turn.call->operation());
  }
  Ticket ticket(library_, turn.call);
  progress_->Add(std::move(turn.call));
  return ticket;
}

Status NcclCommunicator::Enqueue(Channel& channel, const std::function<nccl::Code(nccl::Comm)>& work) {
  MutexLock lock(nccl_mutex_);
  if (is_broken_ || channel.comm == nullptr) return broken();
  nccl::Code code = api_->GroupStart();
  if (code != nccl::kSuccess) return NcclError(code, "ncclGroupStart");
  code = work(channel.comm);
  // A group is closed in any case: an open one would swallow all later calls of this thread.
  const nccl::Code end = api_->GroupEnd();
  if (code != nccl::kSuccess && code != nccl::kInProgress) return NcclError(code, "a collective");
  if (end != nccl::kSuccess && end != nccl::kInProgress) return NcclError(end, "ncclGroupEnd");
  lock.unlock();
  return end == nccl::kSuccess ? OkStatus() : AwaitConnection(channel, options_.stall_timeout_s);
}

}  // namespace lockstep::device
