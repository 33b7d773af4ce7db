// Collectives that are matched by name, in any order on each rank (core/comm/named/named_lane.h): the ops of Horovod's
// API.
//
//   op                         input      output                               attributes beside the common ones
//   LockstepNamedAllReduce     [...]      [...]                                reduction, prescale, postscale
//   LockstepNamedReduceScatter [n, ...]   [this rank's share of n, ...]        reduction, prescale, postscale
//   LockstepNamedAllGather     [n_r, ...] [sum of n_r, ...]
//   LockstepNamedAllToAll      [n_r, ...] [rows for this rank, ...], splits
//   LockstepNamedBroadcast     [...]      [...]                                root
//   LockstepNamedBarrier       -          -
//   LockstepNamedJoin          -          [] int32, the rank that joined last
//   LockstepNamedPlace         -          [] int32 each: rank and size, without an exchange
//
// All except the last three take lists. Each tensor is a request with its own name, and the requests of a list are done
// together or not at all, unless `together` is false. Unlike for LOCKSTEP_COLLECTIVE_OPs, the pass in tf/graph does not
// order them.
#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/base/mutex.h"
#include "core/capi/capi.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/env.h"
#include "tf/comm/collective_op.h"
#include "tf/comm/views.h"
#include "tf/device/devices.h"
#include "tf/device/kernels_for_gpus.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;

// The time in which requests of a cancelled step may still be answered. Ranks whose steps fail alike need less.
constexpr int64_t kCancelGraceUs = 1'000'000;

// From this size on results are views. For smaller ones malloc keeps memory and uses it again.
constexpr int64_t kLeastViewBytes = 1 << 20;

// Returns a node's name without the numbers that TensorFlow gives to inlined conditionals and loops ("cond/then/_12/x"
// becomes "cond/then/x"). It counts all of them in a graph, and ranks may have different other parts.
std::string WithoutCounters(std::string_view name) {
  std::vector<std::string_view> kept;
  for (const std::string_view part : absl::StrSplit(name, '/')) {
    const bool is_count = part.size() > 1 && part[0] == '_' && absl::c_all_of(part.substr(1), absl::ascii_isdigit);
    const std::string_view before = kept.empty() ? "" : kept.back();
    if (is_count && (before == "then" || before == "else" || before == "body" || before.starts_with("branch")))
      continue;
    kept.push_back(part);
  }
  return absl::StrJoin(kept, "/");
}

// The requests of one kernel's call, until all have ended.
class Requests : public std::enable_shared_from_this<Requests> {
 public:
  // Holds the lane weakly: the lane's own thread ends requests, and must not be the last owner of the lane.
  Requests(const std::shared_ptr<NamedLane>& lane, tf::OpKernelContext* context, int count,
           tf::AsyncOpKernel::DoneCallback done)
      : lane_(lane),
        label_(lane->label()),
        context_(context),
        are_many_(count > 1),
        left_(count),
        done_(std::move(done)) {}

  // Registers with the step's cancellation; returns false if the step is already cancelled.
  bool Watch() {
    manager_ = context_->cancellation_manager();
    if (manager_ == nullptr) return true;  // an eager op outside of any step
    token_ = manager_->get_cancellation_token();
    return manager_->RegisterCallback(token_, [self = shared_from_this()] {
      tf::Env::Default()->SchedClosureAfter(kCancelGraceUs, [self] { self->Cancel(); });
    });
  }

  // By which the lane knows the requests, all of which have been submitted.
  void SetTickets(std::vector<uint64_t> tickets) {
    bool cancelled;
    {
      const MutexLock lock(mutex_);
      tickets_ = std::move(tickets);
      cancelled = cancelled_;
    }
    if (cancelled) Cancel();
  }

  // Called when a request has ended.
  void End(const Status& status) {
    if (!status.ok()) {
      const MutexLock lock(mutex_);
      if (status_.ok()) status_ = status;
    }
    if (left_.fetch_sub(1) > 1) return;
    if (manager_ != nullptr) manager_->TryDeregisterCallback(token_);
    const Status first = FirstError();
    if (!first.ok()) context_->SetStatus(ToTensorFlow(label_.empty() ? first : first.WithPrefix(label_ + ": ")));
    if (!are_many_ || manager_ == nullptr || context_->runner() == nullptr) return done_();
    // Called here, `done` would make the executor send each next node to another thread and wake that thread for each.
    // If all cores are busy, each wake-up waits for a core. Called on the runner, `done` costs one wake-up. (An eager
    // op has no next nodes, and the only such thread may be waiting for it.) The runner is copied, because the
    // executor's own may be destroyed before the call returns.
    const std::function<void(std::function<void()>)> runner = *context_->runner();
    runner(done_);
  }

 private:
  Status FirstError() {
    const MutexLock lock(mutex_);
    return status_;
  }

  void Cancel() {
    std::vector<uint64_t> tickets;
    {
      const MutexLock lock(mutex_);
      tickets = tickets_;
      cancelled_ = true;
    }
    const std::shared_ptr<NamedLane> lane = lane_.lock();
    if (lane == nullptr) return;
    for (const uint64_t ticket : tickets) lane->Cancel(ticket, "the step was cancelled");
  }

  const std::weak_ptr<NamedLane> lane_;
  const std::string label_;
  tf::OpKernelContext* const context_;
  const bool are_many_;
  std::atomic<int> left_;
  const tf::AsyncOpKernel::DoneCallback done_;
  tf::CancellationManager* manager_ = nullptr;
  tf::CancellationToken token_ = tf::CancellationManager::kInvalidToken;
  Mutex mutex_;
  std::vector<uint64_t> tickets_ LOCKSTEP_GUARDED_BY(mutex_);
  bool cancelled_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  Status status_ LOCKSTEP_GUARDED_BY(mutex_);  // the first error
};

NamedReduction ReductionOf(const std::string& name) {
  for (int i = 0; i < kNamedReductionCount; ++i) {
    if (NamedReductionName(static_cast<NamedReduction>(i)) == name) return static_cast<NamedReduction>(i);
  }
  return NamedReduction::kSum;  // the op's definition allows no others
}

// Reads a double that is given as text.
absl::Status GetFactor(tf::OpKernelConstruction* construction, const char* attribute, double* factor) {
  std::string text;
  TF_RETURN_IF_ERROR(construction->GetAttr(attribute, &text));
  if (absl::SimpleAtod(text, factor)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'", construction->def().name(), "': ", attribute, " is '", text, "', wanted a number"));
}

std::vector<int64_t> DimsOf(const tf::TensorShape& shape) {
  std::vector<int64_t> dims;
  for (const auto& dim : shape) dims.push_back(dim.size);
  return dims;
}

// Base of the kernels: makes a request of each tensor, submits them, and is done when all have ended.
class NamedKernel : public tf::AsyncOpKernel {
 public:
  NamedKernel(tf::OpKernelConstruction* construction, NamedKind kind)
      : AsyncOpKernel(construction),
        kind_(kind),
        on_device_(construction->device_type() == tf::DeviceType(tf::DEVICE_GPU)),
        own_name_(WithoutCounters(name())) {
    OP_REQUIRES_OK(construction, construction->GetAttr("process_set", &process_set_));
    OP_REQUIRES_OK(construction, construction->GetAttr("names", &names_));
    if (construction->HasAttr("numbered")) OP_REQUIRES_OK(construction, construction->GetAttr("numbered", &numbered_));
    if (construction->HasAttr("together")) OP_REQUIRES_OK(construction, construction->GetAttr("together", &together_));
    if (construction->HasAttr("reduction")) {
      std::string reduction;
      OP_REQUIRES_OK(construction, construction->GetAttr("reduction", &reduction));
      OP_REQUIRES_OK(construction, GetFactor(construction, "prescale", &prescale_));
      OP_REQUIRES_OK(construction, GetFactor(construction, "postscale", &postscale_));
      reduction_ = ReductionOf(reduction);
    }
    if (construction->HasAttr("root")) OP_REQUIRES_OK(construction, construction->GetAttr("root", &root_));
    if (construction->HasAttr("T")) {
      tf::DataTypeVector types;
      OP_REQUIRES_OK(construction, construction->GetAttr("T", &types));
      tensors_ = static_cast<int>(types.size());
    }
    if (construction->HasAttr("M")) OP_REQUIRES_OK(construction, construction->GetAttr("M", &called_));
    const int requests = std::max(tensors_, 1);
    OP_REQUIRES(construction, static_cast<int>(names_.size()) == requests && called_ <= 1,
                absl::InvalidArgumentError(absl::StrCat("'", name(), "': got ", names_.size(), " names and ", called_,
                                                        " tensors of them for ", requests, " tensors")));
  }

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) final {
    Result<std::shared_ptr<NamedLane>> lane = NamedLaneOf(process_set_);
    OP_REQUIRES_ASYNC(context, lane.ok(), ToTensorFlow(lane.status()), done);
    const int count = static_cast<int>(names_.size());
    OP_REQUIRES_ASYNC(
        context, called_ == 0 || context->input(tensors_).NumElements() == count,
        absl::InvalidArgumentError(absl::StrCat("'", name(), "': got ", context->input(tensors_).NumElements(),
                                                " names for ", count, " tensors")),
        done);
    auto requests = std::make_shared<Requests>(*lane, context, count, std::move(done));
    if (!requests->Watch()) {
      const Status cancelled = Cancelled(absl::StrCat("'", name(), "' was cancelled before it began"));
      for (int i = 0; i < count; ++i) requests->End(cancelled);
      return;
    }
    // An error of the device is this rank's refusal, which all ranks get.
    Status refusal;
    device::Stream stream = nullptr;
    if (on_device_) {
      const Result<DevicePlace> place = PlaceOf(context);
      refusal = place.status();
      if (place.ok()) stream = place->stream;
    }
    const std::string number = numbered_ ? absl::StrCat(".", (*lane)->NextNumber(names_[0])) : "";
    std::vector<NamedWork> works;
    for (int i = 0; i < count; ++i) {
      NamedWork& work = works.emplace_back();
      work.request = RequestOf(context, **lane, number, i);
      work.request.on_device = on_device_;
      if (work.request.refusal.ok()) work.request.refusal = refusal;
      work.stream = stream;
      if (tensors_ > 0) work.in = Data(context->input(i));
      // Inputs and outputs live until all requests have ended, and the lane calls this itself.
      work.allocate = [this, context, lane = lane->get(), i](std::span<const int64_t> shape) {
        return AllocateOutput(context, *lane, i, shape);
      };
      work.done = [this, context, i, requests](const Status& status, const NamedWork::Outcome& outcome) {
        requests->End(status.ok() ? Finish(context, i, outcome) : status);
      };
    }
    requests->SetTickets((*lane)->Submit(std::move(works)));
  }

 protected:
  // Reads the parts of a request that other inputs give. Errors go into `refusal`.
  virtual void Fill(tf::OpKernelContext* context, int ranks, int i, NamedRequest* request) {}
  // Writes outputs that are known at the end, besides the result tensor.
  virtual Status Finish(tf::OpKernelContext* context, int i, const NamedWork::Outcome& outcome) { return OkStatus(); }

  // Return the number of tensors, and the number of inputs with their names after them: 0 or 1.
  int tensors() const { return tensors_; }
  int called() const { return called_; }

 private:
  // Returns a request's name; `number` is appended for a numbered call. The first of several tensors is named like a
  // single one, so that ranks with different numbers of tensors match and get an error.
  std::string NameOf(tf::OpKernelContext* context, const std::string& number, int i) const {
    if (called_ > 0) return std::string(context->input(tensors_).flat<tf::tstring>()(i));
    if (!names_[i].empty() && !numbered_) return names_[i];
    const std::string name = absl::StrCat(names_[i].empty() ? own_name_ : names_[i], number);
    return i == 0 ? name : absl::StrCat(name, ".", i);
  }

  // Allocates memory for a result. Large results are views of shared memory, which is already mapped. TensorFlow's own
  // memory would be new pages each time and take longer than the exchange. The root's result of a broadcast is its
  // input.
  Result<void*> AllocateOutput(tf::OpKernelContext* context, NamedLane& lane, int i,
                               std::span<const int64_t> shape) const {
    const tf::Tensor& in = context->input(i);
    if (kind_ == NamedKind::kBroadcast && lane.rank() == root_) {
      context->set_output(i, in);
      return Data(in);
    }
    tf::TensorShape dims;
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(tf::TensorShape::BuildTensorShape(shape, &dims)));
    const int64_t bytes = dims.num_elements() * tf::DataTypeSize(in.dtype());
    if (bytes >= kLeastViewBytes && !on_device_) {
      const auto memory = ForViews(lane.AllocateShared(bytes), lane.shared_bytes() / 2);
      if (memory != nullptr) {
        context->set_output(i, ViewOf(memory, 0, in.dtype(), dims));
        return memory->data();
      }
    }
    tf::Tensor* output = nullptr;
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(context->allocate_output(i, dims, &output)));
    return Data(*output);
  }

  NamedRequest RequestOf(tf::OpKernelContext* context, const NamedLane& lane, const std::string& number, int i) {
    NamedRequest request;
    request.kind = kind_;
    request.name = NameOf(context, number, i);
    if (numbered_) request.family = NameOf(context, "", i);
    request.reduction = reduction_;
    request.prescale = prescale_;
    request.postscale = postscale_;
    request.root = root_;
    if (together_ && names_.size() > 1) {
      request.group = NameOf(context, number, 0);
      request.group_size = static_cast<uint32_t>(names_.size());
    }
    if (kind_ != NamedKind::kBarrier && kind_ != NamedKind::kJoin) {
      const tf::Tensor& in = context->input(i);
      const Result<DType> dtype = ToDType(in.dtype());
      if (dtype.ok()) request.dtype = *dtype;
      request.refusal = dtype.status();
      request.shape = DimsOf(in.shape());
    }
    Fill(context, lane.size(), i, &request);
    return request;
  }

  const NamedKind kind_;
  const bool on_device_;        // its tensors are in a GPU's memory
  const std::string own_name_;  // for tensors without a name
  int process_set_ = 0;
  std::vector<std::string> names_;
  bool numbered_ = false;
  bool together_ = false;
  NamedReduction reduction_ = NamedReduction::kSum;
  double prescale_ = 1, postscale_ = 1;
  int root_ = 0;
  int tensors_ = 0;
  int called_ = 0;
};

template <NamedKind kKind>
class PlainNamedKernel : public NamedKernel {
 public:
  explicit PlainNamedKernel(tf::OpKernelConstruction* construction) : NamedKernel(construction, kKind) {}
};

class NamedAllToAllKernel : public NamedKernel {
 public:
  explicit NamedAllToAllKernel(tf::OpKernelConstruction* construction)
      : NamedKernel(construction, NamedKind::kAllToAll) {
    OP_REQUIRES(construction, construction->num_outputs() == 2 * tensors(),
                absl::InvalidArgumentError(absl::StrCat("'", name(), "': got ", tensors(), " tensors and ",
                                                        construction->num_outputs() - tensors(), " splits")));
  }

 protected:
  // Without splits, each rank gets the same number of rows.
  void Fill(tf::OpKernelContext* context, int ranks, int i, NamedRequest* request) override {
    const tf::Tensor& splits = context->input(tensors() + called() + i);
    if (splits.dims() != 1) {
      request->refusal = InvalidArgument(absl::StrCat("alltoall '", request->name, "': got splits of shape ",
                                                      splits.shape().DebugString(), ", wanted [", ranks, "]"));
    } else if (splits.NumElements() > 0) {
      const auto fill = [&](const auto& values) {
        for (int64_t k = 0; k < values.size(); ++k) request->splits.push_back(values(k));
      };
      splits.dtype() == tf::DT_INT32 ? fill(splits.vec<int32_t>()) : fill(splits.vec<int64_t>());
    } else if (!request->shape.empty() && request->rows() % ranks != 0) {
      request->refusal =
          InvalidArgument(absl::StrCat("alltoall '", request->name, "': got ", request->rows(),
                                       " rows and no splits, wanted splits or a multiple of ", ranks, " rows"));
    } else {
      request->splits.assign(ranks, request->rows() / ranks);
    }
  }

  Status Finish(tf::OpKernelContext* context, int i, const NamedWork::Outcome& outcome) override {
    tf::Tensor* received = nullptr;
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(context->allocate_output(
        tensors() + i, tf::TensorShape({static_cast<int64_t>(outcome.received.size())}), &received)));
    const auto fill = [&](auto values) { std::copy(outcome.received.begin(), outcome.received.end(), values.data()); };
    received->dtype() == tf::DT_INT32 ? fill(received->vec<int32_t>()) : fill(received->vec<int64_t>());
    return OkStatus();
  }
};

class NamedJoinKernel : public NamedKernel {
 public:
  explicit NamedJoinKernel(tf::OpKernelConstruction* construction) : NamedKernel(construction, NamedKind::kJoin) {}

 protected:
  Status Finish(tf::OpKernelContext* context, int i, const NamedWork::Outcome& outcome) override {
    tf::Tensor* last = nullptr;
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(context->allocate_output(0, {}, &last)));
    // A join that ended well has this value.
    last->scalar<int32_t>()() = *outcome.last_joined;
    return OkStatus();
  }
};

// Returns rank and size at run time, because a graph may outlive a job.
class NamedPlaceKernel : public tf::OpKernel {
 public:
  explicit NamedPlaceKernel(tf::OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("process_set", &process_set_));
  }

  void Compute(tf::OpKernelContext* context) override {
    const Result<std::shared_ptr<NamedLane>> lane = NamedLaneOf(process_set_);
    OP_REQUIRES(context, lane.ok(), ToTensorFlow(lane.status()));
    const int values[] = {(*lane)->rank(), (*lane)->size()};
    for (int i = 0; i < 2; ++i) {
      tf::Tensor* output = nullptr;
      OP_REQUIRES_OK(context, context->allocate_output(i, {}, &output));
      output->scalar<int32_t>()() = values[i];
    }
  }

 private:
  int process_set_ = 0;
};

#define REGISTER_NAMED(op, kernel) REGISTER_KERNEL_BUILDER(Name(op).Device(tf::DEVICE_CPU), kernel)
REGISTER_NAMED("LockstepNamedAllReduce", PlainNamedKernel<NamedKind::kAllReduce>);
REGISTER_NAMED("LockstepNamedReduceScatter", PlainNamedKernel<NamedKind::kReduceScatter>);
REGISTER_NAMED("LockstepNamedAllGather", PlainNamedKernel<NamedKind::kAllGather>);
REGISTER_NAMED("LockstepNamedAllToAll", NamedAllToAllKernel);
REGISTER_NAMED("LockstepNamedBroadcast", PlainNamedKernel<NamedKind::kBroadcast>);
REGISTER_NAMED("LockstepNamedBarrier", PlainNamedKernel<NamedKind::kBarrier>);
REGISTER_NAMED("LockstepNamedJoin", NamedJoinKernel);
REGISTER_NAMED("LockstepNamedPlace", NamedPlaceKernel);

// The same kernels: the lane exchanges tensors of GPUs in their memory.
using NamedAllReduceKernel = PlainNamedKernel<NamedKind::kAllReduce>;
using NamedReduceScatterKernel = PlainNamedKernel<NamedKind::kReduceScatter>;
using NamedAllGatherKernel = PlainNamedKernel<NamedKind::kAllGather>;
using NamedBroadcastKernel = PlainNamedKernel<NamedKind::kBroadcast>;
LOCKSTEP_DEVICE_KERNEL("LockstepNamedAllReduce", NamedAllReduceKernel, "called");
LOCKSTEP_DEVICE_KERNEL("LockstepNamedReduceScatter", NamedReduceScatterKernel, "called");
LOCKSTEP_DEVICE_KERNEL("LockstepNamedAllGather", NamedAllGatherKernel, "called");
LOCKSTEP_DEVICE_KERNEL("LockstepNamedAllToAll", NamedAllToAllKernel, "called", "splits", "received");
LOCKSTEP_DEVICE_KERNEL("LockstepNamedBroadcast", NamedBroadcastKernel, "called");

}  // namespace
}  // namespace lockstep
