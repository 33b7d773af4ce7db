#include "core/device/comm/staged_communicator.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <map>
#include <new>
#include <string>
#include <thread>

#include "core/base/float_mode.h"
#include "core/base/strings.h"
#include "core/comm/collective/adasum.h"
#include "core/comm/collective/adasum_plan.h"
#include "core/comm/collective/arguments.h"
#include "core/comm/collective/arrivals.h"
#include "core/comm/collective/call.h"
#include "core/comm/liveness/after_loss.h"

namespace lockstep::device {
namespace {

// How often the lane looks for the end of a copy: often at first.
constexpr auto kFirstSleep = std::chrono::microseconds(10);
constexpr auto kLongestSleep = std::chrono::microseconds(1000);

}  // namespace

// Sizes are rounded up to powers of two, so that calls of similar sizes share memory.
struct StagedCommunicator::Pool {
  explicit Pool(const Library& of) : library(of) {}
  ~Pool() {
    for (const auto& [bytes, memory] : free) (void)library.deallocate_pinned(memory);
  }
  const Library& library;
  Mutex mutex;
  std::multimap<int64_t, void*> free LOCKSTEP_GUARDED_BY(mutex);
};

StagedCommunicator::StagedCommunicator(const CommOptions& options, Communicator& host)
    : DeviceCommunicator(host),
      options_(options),
      library_(*options.library),
      pool_(std::make_shared<Pool>(*options.library)),
      progress_(std::make_unique<Progress>(*options.library, options.device, Progress::Hooks{})),
      lane_(std::make_unique<Lane>(/*spin_us=*/0)) {}

Result<std::unique_ptr<DeviceCommunicator>> StagedCommunicator::Create(const CommOptions& options, Communicator& host) {
  std::unique_ptr<StagedCommunicator> communicator(new StagedCommunicator(options, host));
  const Library& library = *options.library;
  Status status = ToStatus(library, library.set_device(options.device), "set_device");
  if (status.ok()) status = ToStatus(library, library.create_stream(&communicator->stream_), "create_stream");
  if (status.ok()) status = communicator->MakeGate();
  constexpr std::string_view kName = "start of devices with staged copies";
  LOCKSTEP_RETURN_IF_ERROR(status.ok() ? host.Barrier(kName) : host.Decline(kName, status));
  return std::unique_ptr<DeviceCommunicator>(std::move(communicator));
}

Status StagedCommunicator::MakeGate() {
  void* memory = nullptr;
  LOCKSTEP_RETURN_IF_ERROR(ToStatus(library_, library_.allocate_pinned(sizeof(uint32_t), &memory), "allocate_pinned"));
  gate_ = new (memory) uint32_t(0);
  lane_->Post([this] { (void)library_.set_device(options_.device); });  // an error comes again from the first event
  return OkStatus();
}

// The lane runs what was posted, and opens the gate for all calls, so they end.
StagedCommunicator::~StagedCommunicator() {
  lane_.reset();
  progress_.reset();
  if (stream_ != nullptr) (void)library_.destroy_stream(stream_);  // nothing is left in it
  if (gate_ != nullptr) (void)library_.deallocate_pinned(gate_);
}

Status StagedCommunicator::broken() const {
  const MutexLock lock(mutex_);
  return broken_;
}

Status StagedCommunicator::Break(const Status& why) {
  {
    const MutexLock lock(mutex_);
    if (!broken_.ok()) return broken_;
    broken_ = why;
    is_broken_ = true;
  }
  (void)progress_->End(why);
  return why;
}

Status StagedCommunicator::CheckHost(const Status& status) {
  if (status.ok() || !host_.broken()) return status;
  AfterLoss::ProgramKnows();
  return Break(status);
}

Result<StagedCommunicator::Pinned> StagedCommunicator::Pin(int64_t bytes) {
  int64_t rounded = 4096;
  while (rounded < bytes) rounded *= 2;
  void* memory = nullptr;
  {
    const MutexLock lock(pool_->mutex);
    if (const auto found = pool_->free.find(rounded); found != pool_->free.end()) {
      memory = found->second;
      pool_->free.erase(found);
    }
  }
  if (memory == nullptr) {
    LOCKSTEP_RETURN_IF_ERROR(ToStatus(library_, library_.allocate_pinned(rounded, &memory), "allocate_pinned"));
  }
  return Pinned(memory, [pool = pool_, rounded](void* back) {
    const MutexLock lock(pool->mutex);
    pool->free.emplace(rounded, back);
  });
}

Status StagedCommunicator::AwaitCopy(const PendingCall& call) const {
  auto sleep = kFirstSleep;
  while (true) {
    bool has_passed = false;
    LOCKSTEP_RETURN_IF_ERROR(ToStatus(library_, library_.has_passed(call.begun(), &has_passed), "has_passed"));
    if (has_passed) return OkStatus();
    if (is_broken_) return broken();
    std::this_thread::sleep_for(sleep);
    sleep = std::min(2 * sleep, kLongestSleep);
  }
}

// Without memory the call is declined in its turn. Each piece of work owns what it needs: the ticket may be gone.
Result<Ticket> StagedCommunicator::Enqueue(Work work, Stream after) {
  if (Status why = broken(); !why.ok()) {
    AfterLoss::ProgramKnows();
    return why;
  }
  const Status device = ToStatus(library_, library_.set_device(options_.device), "set_device");
  auto created = PendingCall::Create(library_, StrCat(CallKindName(work.kind), " '", work.name, "'"));
  Result<Pinned> in = Pin(work.in_place ? std::max(work.in_bytes, work.out_bytes) : work.in_bytes);
  Result<Pinned> out = work.in_place ? in : Pin(work.out_bytes);
  for (const Status& status : {device, created.status(), in.status(), out.status()}) {
    if (!status.ok()) return OnLane([&] { return host_.Decline(work.name, status); });
  }
  std::shared_ptr<PendingCall> call = *std::move(created);
  call->Keep(*in);
  call->Keep(*out);
  const uint32_t number = ++num_calls_;
  std::vector<Error> errors;
  if (after != nullptr) {
    errors.push_back(library_.record_event(call->begun(), after));
    errors.push_back(library_.wait_event(stream_, call->begun()));
  }
  if (work.in_bytes > 0) errors.push_back(library_.copy(stream_, in->get(), work.in, work.in_bytes));
  errors.push_back(library_.record_event(call->begun(), stream_));
  errors.push_back(library_.wait_value(stream_, gate_, number));
  if (work.out_bytes > 0 && work.out != nullptr) {
    errors.push_back(library_.copy(stream_, work.out, out->get(), work.out_bytes));
  }
  errors.push_back(library_.record_event(call->ended(), stream_));
  const auto failed = std::find_if(errors.begin(), errors.end(), [](Error error) { return error != kSuccess; });
  const Status enqueued = failed == errors.end() ? OkStatus() : ToStatus(library_, *failed, call->operation().c_str());
  Ticket ticket(library_, call);
  lane_->Post(
      [this, call, number, enqueued, in = *in, out = *out, name = std::string(work.name), run = std::move(work.run)] {
        const GradualUnderflow mode;  // the thread has the mode of the one that has made it
        Status status = enqueued.ok() ? AwaitCopy(*call) : enqueued;
        // A rank whose device fails takes part by declining, so that the others do not wait.
        status = status.ok() ? run(name, in.get(), out.get()) : is_broken_ ? status : host_.Decline(name, status);
        status = CheckHost(status);
        if (!status.ok()) call->Fail(status);
        std::atomic_ref<uint32_t>(*gate_).store(number, std::memory_order_release);
      });
  progress_->Add(std::move(call));
  return ticket;
}

Status StagedCommunicator::OnLane(const std::function<Status()>& collective) {
  if (Status why = broken(); !why.ok()) {
    AfterLoss::ProgramKnows();
    return why;
  }
  std::promise<Status> done;
  lane_->Post([&] { done.set_value(CheckHost(collective())); });
  return done.get_future().get();
}

Result<std::vector<int64_t>> StagedCommunicator::Compare(const Call& call, std::span<const int64_t> values) {
  std::vector<int64_t> all;
  LOCKSTEP_RETURN_IF_ERROR(OnLane([&]() -> Status {
    LOCKSTEP_ASSIGN_OR_RETURN(all, host_.Compare(call, values));
    return OkStatus();
  }));
  return all;
}

Result<Ticket> StagedCommunicator::AllReduce(std::string_view name, ReduceOp op, DType dtype, int64_t count,
                                             const void* in, void* out, Stream after) {
  LOCKSTEP_RETURN_IF_ERROR(CheckReduction("allreduce", name, op, dtype).status());
  LOCKSTEP_RETURN_IF_ERROR(CheckAllReduce(name, count, in, out));
  const int64_t bytes = count * DTypeSize(dtype);
  return Enqueue({CallKind::kAllReduce, name, in, bytes, out, bytes, /*in_place=*/true,
                  [=, this](std::string_view of, const void*, void* data) {
                    return host_.AllReduce(of, op, dtype, count, data, data);
                  }},
                 after);
}

Result<Ticket> StagedCommunicator::ReduceScatter(std::string_view name, ReduceOp op, DType dtype,
                                                 std::span<const int64_t> counts, const void* in, void* out,
                                                 Stream after) {
  LOCKSTEP_RETURN_IF_ERROR(CheckReduction("reducescatter", name, op, dtype).status());
  const int64_t width = DTypeSize(dtype);
  LOCKSTEP_RETURN_IF_ERROR(CheckCounts("reducescatter", name, size(), counts, width, in));
  LOCKSTEP_RETURN_IF_ERROR(CheckReduceScatter(name, counts[rank()], out));
  return Enqueue(
      {CallKind::kReduceScatter, name, in, SumOf(counts) * width, out, counts[rank()] * width,
       /*in_place=*/false,
       [=, this, counts = std::vector(counts.begin(), counts.end())](std::string_view of, const void* from, void* to) {
         return host_.ReduceScatter(of, op, dtype, counts, from, to);
       }},
      after);
}

Result<Ticket> StagedCommunicator::Broadcast(std::string_view name, int root, int64_t bytes, void* data, Stream after) {
  LOCKSTEP_RETURN_IF_ERROR(CheckBroadcast(name, size(), root, bytes, data));
  const bool sends = rank() == root;
  return Enqueue(
      {CallKind::kBroadcast, name, data, sends ? bytes : 0, data, sends ? 0 : bytes, /*in_place=*/true,
       [=, this](std::string_view of, const void*, void* copy) { return host_.Broadcast(of, root, bytes, copy); }},
      after);
}

// Receives what was announced, or nothing without memory on the device: the exchange continues without this rank then.
Result<Ticket> StagedCommunicator::AllGatherV(std::string_view name, Item item, std::span<const int64_t> counts,
                                              const void* in, void* out, Stream after) {
  LOCKSTEP_RETURN_IF_ERROR(CheckCounts("allgather", name, size(), counts, 0, nullptr));
  LOCKSTEP_RETURN_IF_ERROR(CheckAllGather(name, item, counts[rank()], in));
  return Enqueue(
      {CallKind::kAllGatherV, name, in, counts[rank()] * item.bytes(), out, SumOf(counts) * item.bytes(),
       /*in_place=*/false,
       [=, this, counts = std::vector(counts.begin(), counts.end())](std::string_view of, const void* from, void* to) {
         return host_.AllGatherV(of, item, counts[rank()], from, Expecting(of, counts, to));
       }},
      after);
}

Result<Ticket> StagedCommunicator::AllToAllV(std::string_view name, Item item, std::span<const int64_t> send_counts,
                                             std::span<const int64_t> receive_counts, const void* in, void* out,
                                             Stream after) {
  LOCKSTEP_RETURN_IF_ERROR(CheckAllToAll(name, item, size(), send_counts, in));
  LOCKSTEP_RETURN_IF_ERROR(CheckCounts("alltoall", name, size(), receive_counts, 0, nullptr));
  return Enqueue(
      {CallKind::kAllToAllV, name, in, SumOf(send_counts) * item.bytes(), out, SumOf(receive_counts) * item.bytes(),
       /*in_place=*/false,
       [=, this, sends = std::vector(send_counts.begin(), send_counts.end()),
        receives = std::vector(receive_counts.begin(), receive_counts.end())](std::string_view of, const void* from,
                                                                              void* to) {
         return host_.AllToAllV(of, item, sends, from, Expecting(of, receives, to));
       }},
      after);
}

Result<Ticket> StagedCommunicator::Adasum(std::string_view name, DType dtype,
                                          std::span<const int64_t> counts_of_tensors, const void* in, void* out,
                                          Stream after) {
  LOCKSTEP_RETURN_IF_ERROR(adasum::CheckArguments(name, dtype, counts_of_tensors, in, out));
  const int64_t bytes = SumOf(counts_of_tensors) * DTypeSize(dtype);
  return Enqueue({CallKind::kAllToAllV, name, in, bytes, out, bytes, /*in_place=*/true,
                  [=, this, counts = std::vector(counts_of_tensors.begin(), counts_of_tensors.end())](
                      std::string_view of, const void*, void* data) {
                    return AdasumAllReduce(host_, of, dtype, counts, data, data);
                  }},
                 after);
}

Status StagedCommunicator::Barrier(std::string_view name) {
  return OnLane([&] { return host_.Barrier(name); });
}

Status StagedCommunicator::Decline(std::string_view name, const Status& why) {
  return OnLane([&] { return host_.Decline(name, why); });
}

void StagedCommunicator::Abort(const Status& why) {
  host_.Abort(why);
  const std::string reason = why.code() == StatusCode::kCancelled ? why.message() : why.ToString();
  (void)Break(Cancelled(reason));
}

void StagedCommunicator::Leave(std::string_view how) { host_.Leave(how); }

void StagedCommunicator::ReleaseHost() {
  const auto is_free = std::make_shared<std::promise<void>>();
  const std::future<void> free = is_free->get_future();
  lane_->Post([is_free] { is_free->set_value(); });
  free.wait();
}

}  // namespace lockstep::device
