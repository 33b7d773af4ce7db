// LockstepRoute (lookup_ops.cc) for tables with string keys (core/sharding/string_route.h):
//
//   ids -> LockstepRouteStrings -> LockstepDynamicTableResolve or Lookup at the owner -> LockstepCombine -> rows
//
//   tensor          shape             dtype     is
//   ids             [...], N in all   string    the keys to look up
//   served          [M]               string    keys that the ranks ask of this one, in rank order
//   times           [M]               int64     how often the asking rank looked each up
//   inverse, send_splits, recv_splits           as LockstepRoute's
//
// On the only rank of a job, LockstepDistinctStrings drops duplicates and exchanges nothing.
//
// LockstepRouteStrings is separate from LockstepRoute, but on the same level for the grouping pass
// (tf/graph/grouping.h). Only programs with string keys make this exchange, and the rows of all tables still share one
// exchange.
#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/capi/capi.h"
#include "core/sharding/string_route.h"
#include "core/telemetry/clock.h"
#include "tf/bridge/parallel.h"
#include "tf/comm/collective_kernel.h"
#include "tf/lookup/key_owners.h"
#include "tf/lookup/lookup_counts.h"
#include "tf/lookup/problems.h"
#include "tf/lookup/shard_rows.h"
#include "tf/lookup/stage.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;
using tf::shape_inference::InferenceContext;

// M depends on all ranks' ids, and R on the job; inverse has the shape of the ids.
absl::Status RouteStringsShapes(InferenceContext* c) {
  const int count = c->num_outputs() / 5;
  for (int i = 0; i < count; ++i) {
    c->set_output(i, c->Vector(c->UnknownDim()));
    c->set_output(count + i, c->output(i));
    c->set_output(2 * count + i, c->input(i));
    c->set_output(3 * count + i, c->Vector(c->UnknownDim()));
    c->set_output(4 * count + i, c->output(3 * count + i));
  }
  return absl::OkStatus();
}

std::vector<std::string_view> ViewsOf(const tf::Tensor& strings) {
  const auto given = strings.flat<tf::tstring>();
  std::vector<std::string_view> views(given.size());
  for (int64_t k = 0; k < given.size(); ++k) views[k] = {given(k).data(), given(k).size()};
  return views;
}

class RouteStringsKernel : public CollectiveKernel {
 public:
  explicit RouteStringsKernel(tf::OpKernelConstruction* construction) : CollectiveKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("tables", &tables_));
    OP_REQUIRES_OK(construction, ReadStage(construction, &stage_));
    for (const std::string& table : tables_) counters_.push_back(&ProcessTelemetry()->Table(table));
    const int lookups = construction->num_outputs() / 5;
    OP_REQUIRES_OK(construction, construction->GetAttr("P", &problems_));
    seen_ = construction->num_inputs() - lookups - problems_;
    OP_REQUIRES(construction, static_cast<int>(tables_.size()) == lookups && (seen_ == 0 || seen_ == lookups),
                absl::InvalidArgumentError(absl::StrCat("route '", construction->def().name(), "': ", lookups,
                                                        " lookups, but ", tables_.size(), " tables and S = ", seen_)));
    OP_REQUIRES_OK(construction, ReadKeyOwners(construction, tables_.size(), &placements_));
    exchange_name_ = collective_name();
    std::string placed;
    for (const KeyPlacement& placement : placements_) absl::StrAppend(&placed, placement.number(), " ");
    const bool is_default = std::count(placements_.begin(), placements_.end(), KeyPlacement()) == lookups;
    if (!is_default) exchange_name_ += PlacementSignature(placed);
  }

 protected:
  Result<Exchange> Prepare(const Call& call) override {
    tf::OpKernelContext* const context = call.context;
    const int count = static_cast<int>(tables_.size());
    LOCKSTEP_RETURN_IF_ERROR(ReportedProblem(context, problems_));
    // Shared, because an Exchange may be copied; the plans' views refer to the inputs.
    auto plans = std::make_shared<std::vector<StringPlan>>(count);
    std::vector<Status> results(count, OkStatus());
    ParallelForOf(context)(count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) results[i] = Plan(call, static_cast<int>(i), &(*plans)[i]);
    });
    for (Status& result : results) LOCKSTEP_RETURN_IF_ERROR(std::move(result));
    auto message = std::make_shared<StringMessage>(PackStrings(call.engine.communicator(), *plans));
    return Exchange([this, context, plans, message](Communicator& communicator) -> Status {
      LOCKSTEP_ASSIGN_OR_RETURN(const ServedStrings served,
                                ExchangeStrings(communicator, exchange_name_, *plans, *message));
      const int lookups = static_cast<int>(served.lookups.size());
      for (int i = 0; i < lookups; ++i) {
        LOCKSTEP_RETURN_IF_ERROR(Serve(context, lookups, i, served.lookups[i]));
        if (stage_ != Stage::kHost) counters_[i]->AddServed(static_cast<int64_t>(served.lookups[i].strings.size()));
      }
      return OkStatus();
    });
  }

 private:
  // Prepares lookup `i` without the other ranks, and writes the outputs that are already known.
  Status Plan(const Call& call, int i, StringPlan* plan) const {
    const int64_t begin_ns = SteadyNs();
    const int count = static_cast<int>(tables_.size());
    const tf::Tensor& ids = call.context->input(i);
    const int size = call.engine.communicator().size();
    LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * inverse, AllocateTensor(call.context, 2 * count + i, ids.shape()));
    LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * send_splits, AllocateTensor(call.context, 3 * count + i, {size}));
    LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * recv_splits, AllocateTensor(call.context, 4 * count + i, {size}));
    (void)recv_splits;  // written by the exchange; allocation must fail before it
    const std::vector<std::string_view> views = ViewsOf(ids);
    StringLookup lookup = {tables_[i], views, static_cast<int32_t*>(Data(*inverse))};
    lookup.placement = placements_[i];
    LOCKSTEP_ASSIGN_OR_RETURN(lookup.relay_ranks, RelayRanksOf(stage_, call.engine.communicator()));
    if (seen_ > 0) {
      LOCKSTEP_ASSIGN_OR_RETURN(lookup.times, TimesOf(call.context->input(count + i), ids, tables_[i]));
    }
    LOCKSTEP_ASSIGN_OR_RETURN(*plan, PlanStrings(size, lookup));
    std::copy(plan->send.begin(), plan->send.end(), send_splits->flat<int64_t>().data());
    // The second of two stages looks up ids that were counted in the first.
    if (stage_ != Stage::kOwner) {
      const int64_t distinct = std::accumulate(plan->send.begin(), plan->send.end(), int64_t{0});
      CountLookup(*counters_[i], ids.NumElements(), distinct, begin_ns);
    }
    return OkStatus();
  }

  // Writes the arrivals for lookup `i`.
  static Status Serve(tf::OpKernelContext* context, int count, int i, const ServedStrings::Lookup& served) {
    const tf::TensorShape shape({static_cast<int64_t>(served.strings.size())});
    LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * strings, AllocateTensor(context, i, shape));
    LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * times, AllocateTensor(context, count + i, shape));
    auto keys = strings->flat<tf::tstring>();
    for (size_t m = 0; m < served.strings.size(); ++m) {
      keys(m).assign(served.strings[m].data(), served.strings[m].size());
    }
    std::copy(served.times.begin(), served.times.end(), times->flat<int64_t>().data());
    tf::Tensor* const recv_splits = context->mutable_output(4 * count + i);
    std::copy(served.recv.begin(), served.recv.end(), recv_splits->flat<int64_t>().data());
    return OkStatus();
  }

  Stage stage_ = Stage::kOnly;
  std::vector<std::string> tables_;
  std::vector<KeyPlacement> placements_;  // of each table
  std::vector<TableCounters*> counters_;  // of each table
  std::string exchange_name_;
  int seen_ = 0;      // inputs of counts
  int problems_ = 0;  // inputs with errors of the steps before, which are the last ones
};

class DistinctStringsKernel : public tf::OpKernel {
 public:
  explicit DistinctStringsKernel(tf::OpKernelConstruction* construction) : OpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("table", &table_));
    counters_ = &ProcessTelemetry()->Table(table_);
  }

  void Compute(tf::OpKernelContext* context) override {
    context->SetStatus(ToTensorFlow(Run(context).WithPrefix(absl::StrCat("'", name(), "': "))));
  }

 private:
  Status Run(tf::OpKernelContext* context) const {
    const int64_t begin_ns = SteadyNs();
    const tf::Tensor& ids = context->input(0);
    LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * inverse, AllocateTensor(context, 2, ids.shape()));
    const std::vector<std::string_view> views = ViewsOf(ids);
    LOCKSTEP_ASSIGN_OR_RETURN(const StringPlan plan,
                              PlanStrings(1, {table_, views, static_cast<int32_t*>(Data(*inverse))}));
    const auto distinct = static_cast<int64_t>(plan.strings.size());
    LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * strings, AllocateTensor(context, 0, {distinct}));
    LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * times, AllocateTensor(context, 1, {distinct}));
    auto out = strings->flat<tf::tstring>();
    for (int64_t u = 0; u < distinct; ++u) out(u).assign(plan.strings[u].data(), plan.strings[u].size());
    std::copy(plan.times.begin(), plan.times.end(), times->flat<int64_t>().data());
    CountLookup(*counters_, ids.NumElements(), distinct, begin_ns);
    counters_->AddServed(distinct);
    return OkStatus();
  }

  std::string table_;
  TableCounters* counters_ = nullptr;
};

absl::Status DistinctStringsShapes(InferenceContext* c) {
  c->set_output(0, c->Vector(c->UnknownDim()));
  c->set_output(1, c->output(0));
  c->set_output(2, c->input(0));
  return absl::OkStatus();
}

REGISTER_KERNEL_BUILDER(Name("LockstepDistinctStrings").Device(tf::DEVICE_CPU), DistinctStringsKernel);

REGISTER_OP("LockstepDistinctStrings")
    .Input("ids: string")
    .Output("distinct: string")
    .Output("times: int64")
    .Output("inverse: int32")
    .Attr("table: string")
    .Attr(LOCKSTEP_SHARD_ROWS_ATTR ": bool = true")
    .SetShapeFn(DistinctStringsShapes)
    .Doc(R"doc(
Drops duplicates among the strings of a lookup, on the only rank of a job.

ids: any shape, any bytes.
distinct: [U]; in the order of their first appearance.
times: [U]; how often each occurs.
inverse: the shape of ids; the index of each id among the distinct ones.
table: its name, for messages and counters.
)doc");

LOCKSTEP_COLLECTIVE_KERNEL("LockstepRouteStrings", RouteStringsKernel);

LOCKSTEP_GROUPED_COLLECTIVE_OP("LockstepRouteStrings")
    .Input("ids: N * string")
    .Input("seen: S * int64")
    .Input("problems: P * string")
    .Output("served: N * string")
    .Output("times: N * int64")
    .Output("inverse: N * int32")
    .Output("send_splits: N * int64")
    .Output("recv_splits: N * int64")
    .Attr("N: int >= 1")
    .Attr("S: int >= 0")
    .Attr("P: int >= 0")
    .Attr(LOCKSTEP_STAGE_ATTR)
    .Attr(LOCKSTEP_KEY_OWNERS_ATTR)
    .Attr("tables: list(string) >= 1")
    .Attr(LOCKSTEP_SHARD_ROWS_ATTR ": bool = true")
    .SetShapeFn(RouteStringsShapes)
    .Doc(R"doc(
Makes the first step of N lookups by strings: sends each distinct string to the rank that owns it. One exchange.

ids: any shape, any bytes; InvalidArgument on all ranks for a string of 2^32 bytes or more.
seen: for each lookup: the count of each id, in the shape of the ids; or no tensors: once each.
problems: as for LockstepRoute.
served: [M]; the strings that the ranks ask this one for, in rank order.
times: [M]; how often the asking rank looked each up.
inverse: the shape of ids; the index of each id among the distinct ones, sorted by owner.
send_splits: [R]; the number of distinct strings sent to each rank.
recv_splits: [R]; the number received from each rank; M in sum.
stage, key_owners: as for LockstepRoute; strings have no remainder.
tables: their names, for messages.
)doc");

}  // namespace
}  // namespace lockstep
