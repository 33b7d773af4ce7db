// The path of a collective through the threads:
// ```
//   TensorFlow's thread     ComputeAsync: WorkOf, register for cancellation, post; returns
//   the lane's thread       the work, in turn with other kernels' work; then done(), which continues the graph
//   a thread that cancels   OnCancel: schedules a check in one second, and returns
//   TensorFlow's timer      aborts the lane's job if the collective is still running
// ```
// done() is called on the lane, or on a thread of devices; TensorFlow runs the nodes that become ready on its own
// threads. An asynchronous kernel must call done() once on every path: after it, context and kernel may be destroyed.
#include "tf/comm/collective_kernel.h"

#include <atomic>
#include <cctype>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/capi/capi.h"
#include "core/telemetry/clock.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/platform/env.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;

// The time that a collective of a cancelled step may still take before it is aborted. It is long compared with the skew
// between ranks that fail alike, and short for a person who waits for the job to end.
constexpr int64_t kCancelGraceUs = 1'000'000;

// Connects one collective with the cancellation of its step. The collective and the closures of a cancellation share
// it; the closures may outlive the collective. Watch is called once before the collective is posted, Finish once on the
// thread that ends the call, and OnCancel at any time in between. It holds the engine weakly, so that a waiting closure
// keeps no job alive.
class CancelGuard : public std::enable_shared_from_this<CancelGuard> {
 public:
  CancelGuard(const std::shared_ptr<Context>& engine, std::string name) : engine_(engine), name_(std::move(name)) {}

  // Registers with the step's cancellation; returns false if the step is already cancelled. The callback shares this
  // guard until it is deregistered or has run.
  bool Watch(tf::CancellationManager* manager) {
    if (manager == nullptr) return true;  // an eager op outside of any step
    manager_ = manager;
    token_ = manager->get_cancellation_token();
    return manager->RegisterCallback(token_, [self = shared_from_this()] { self->OnCancel(); });
  }

  // Must be called before done(): the cancellation manager belongs to the step, which may end with it.
  void Finish() {
    // The closure of a cancellation reads it on another thread. It orders no other data. A closure that checked just
    // before this aborts an idle communicator of a cancelled step, which is accepted.
    finished_.store(true);
    // DeregisterCallback would make the lane wait for the other callbacks of a running cancellation.
    if (manager_ != nullptr) manager_->TryDeregisterCallback(token_);
  }

 private:
  // Runs on the thread that cancels, which the manager waits for: it must be quick and must not wait. TensorFlow's
  // timer has its own threads.
  void OnCancel() {
    tf::Env::Default()->SchedClosureAfter(kCancelGraceUs, [self = shared_from_this()] {
      if (self->finished_.load()) return;
      if (const std::shared_ptr<Context> engine = self->engine_.lock()) {
        engine->job().Abort(Cancelled(absl::StrCat("the step was cancelled while '", self->name_,
                                                   "' waited for its peers: another operation of this rank failed, or "
                                                   "its session was closed")));
      }
    });
  }

  // Set once, before the collective is posted, and then only read: posting and scheduling make them visible.
  const std::weak_ptr<Context> engine_;
  const std::string name_;
  tf::CancellationManager* manager_ = nullptr;
  tf::CancellationToken token_ = tf::CancellationManager::kInvalidToken;
  // Written by the lane, read by the timer.
  std::atomic<bool> finished_{false};
};

// Returns the name of an eager call. Otherwise it is the node's name, which for an unnamed eager call is the op's.
std::string NameOf(const tf::NodeDef& node) {
  std::string called;
  if (tf::TryGetNodeAttr(node, LOCKSTEP_NAME_ATTR, &called) && !called.empty()) return called;
  return CanonicalName(node.name());
}

}  // namespace

LaneKernel::LaneKernel(tf::OpKernelConstruction* construction)
    : AsyncOpKernel(construction), collective_name_(NameOf(construction->def())) {}

// Finds the engine, gets the work, watches for cancellation, and posts. Every exit calls done() exactly once; after it,
// kernel and context must not be touched.
void LaneKernel::ComputeAsync(tf::OpKernelContext* context, DoneCallback done) {
  Result<std::shared_ptr<Context>> engine = DefaultContext();
  OP_REQUIRES_ASYNC(context, engine.ok(), ToTensorFlow(engine.status()), done);

  Work work = WorkOf({context, **engine});
  // There is nothing to wait for; it is not posted to the lane.
  if (!work) {
    done();
    return;
  }

  // This comes after WorkOf: the watch covers the time on the lane, which is the only part that can be long.
  auto guard = std::make_shared<CancelGuard>(*engine, collective_name_);
  // A collective of an already cancelled step is left out. Peers whose step failed alike leave it out as well. Other
  // peers wait for it until this rank leaves, calls another collective, or the stall timeout ends the job.
  OP_REQUIRES_ASYNC(context, guard->Watch(context->cancellation_manager()),
                    absl::CancelledError(absl::StrCat("'", name(), "' was cancelled before it began")), done);

  End end = [context, guard = std::move(guard), done = std::move(done)](const Status& status) {
    guard->Finish();
    if (!status.ok()) context->SetStatus(ToTensorFlow(status));
    done();
  };
  // A plain reference suffices: the lane keeps the job until it has run everything.
  (*engine)->lane().Post(
      [work = std::move(work), end = std::move(end), &job = (*engine)->job()]() mutable { work(job, std::move(end)); });
}

// A failed preparation takes the collective's place on the lane, in its order, so that all ranks end the same call.
LaneKernel::Work CollectiveKernel::WorkOf(const Call& call) {
  Result<Exchange> exchange = Prepare(call);
  if (exchange.ok() && !*exchange) return nullptr;
  if (!exchange.ok()) {
    exchange = Exchange([this, why = exchange.status()](Communicator& communicator) {
      return communicator.Decline(collective_name(), why);
    });
  }
  return [exchange = *std::move(exchange)](LaneJob& job, const End& end) {
    const int64_t begin_ns = SteadyNs();
    const Status status = exchange(job.OwnCommunicator());
    if (LaneCounters* const counters = job.communicator().counters()) counters->AddExchange(SteadyNs() - begin_ns);
    end(status);
  };
}

// Works in one pass: appends characters, and at the end of each part removes its digits if a '_' precedes them.
// "conv2d" and "v2" keep theirs.
std::string CanonicalName(std::string_view name) {
  std::string result;
  size_t digits = 0;  // after the last '_' of this part
  auto end_part = [&] {
    if (digits > 0 && result.size() > digits && result[result.size() - digits - 1] == '_') {
      result.resize(result.size() - digits - 1);
    }
    digits = 0;
  };
  for (const char c : name) {
    if (c == '/') end_part();
    digits = std::isdigit(static_cast<unsigned char>(c)) ? digits + 1 : 0;
    result.push_back(c);
  }
  end_part();
  return result;
}

// Checked when the kernel is constructed, not when it runs. The mean of an integer is a mistake in the program, the
// same on all ranks, and is best reported before a step begins.
ReduceOp ReduceOpOf(tf::OpKernelConstruction* construction) {
  static constexpr std::pair<std::string_view, ReduceOp> kOps[] = {{"sum", ReduceOp::kSum},
                                                                   {"mean", ReduceOp::kMean},
                                                                   {"min", ReduceOp::kMin},
                                                                   {"max", ReduceOp::kMax},
                                                                   {"prod", ReduceOp::kProduct}};
  std::string name;
  construction->SetStatus(construction->GetAttr("reduce_op", &name));
  ReduceOp op = ReduceOp::kSum;
  for (const auto& [known, value] : kOps) {
    if (known == name) op = value;
  }
  const tf::DataType type = construction->input_type(0);
  if (op == ReduceOp::kMean && !tf::DataTypeIsFloating(type)) {
    construction->SetStatus(absl::InvalidArgumentError(
        absl::StrCat("'", construction->def().name(), "': a mean over ranks needs floating-point tensors, got ",
                     tf::DataTypeString(type), "; reduce the sum, or cast first")));
  }
  return op;
}

// Names are compared between ranks as part of the call's fingerprint, and printed in errors. So a list is represented
// by its first shape, for people, and a hash of all shapes, for the comparison.
std::string ShapeSignature(const tf::OpInputList& tensors) {
  if (tensors.size() == 0) return "nothing";
  std::string result = tensors[0].shape().DebugString();
  if (tensors.size() == 1) return result;
  // FNV-1a over the dimensions tells long lists apart without printing them.
  uint64_t hash = 14695981039346656037ull;
  auto mix = [&hash](uint64_t value) { hash = (hash ^ value) * 1099511628211ull; };
  for (const tf::Tensor& tensor : tensors) {
    mix(static_cast<uint64_t>(tensor.dims()));
    for (const auto& dim : tensor.shape()) mix(static_cast<uint64_t>(dim.size));
  }
  absl::StrAppend(&result, " and ", tensors.size() - 1, " more (#", absl::Hex(hash, absl::kZeroPad16), ")");
  return result;
}

Status CheckRoot(int root, std::string_view node, const Communicator& communicator) {
  if (root >= 0 && root < communicator.size()) return OkStatus();
  return InvalidArgument(
      absl::StrCat("broadcast '", node, "': root ", root, " is not a rank of a job of size ", communicator.size()));
}

}  // namespace lockstep
