// The communicating steps of a lookup in a sharded table (core/sharding/lookup.h), and the checks of ids without
// communication:
//
//   ids -> LockstepRoute -> LockstepReadRows of the shard (read_rows_op.cc) -> LockstepCombine -> rows
//                gradient: tf.IndexedSlices <- LockstepCombineGradient <-
//
//   tensor          shape             dtype     is
//   ids             [...], N in all   Tids      the ids to look up
//   seen            as ids            int64     number of lookups of each, in the second of two stages (stage.h)
//   local_rows      [M]               int64     rows of this rank's shard, for all ranks, in rank order; keys of a
//                                               dynamic table, [M, 2] with their counts where it counts
//   inverse         as ids            int32     the index of each id among the U distinct ones
//   send_splits     [R], U in all     int64     the number of rows that this rank gets from each
//   recv_splits     [R], M in all     int64     the number of rows that it gives to each
//   rows            [M, ...]          T         rows of the shard, at local_rows
//   combined        ids + row         T         the row of each id; or [U, ...], the row of each distinct id
//   row_gradients   [M, ...]          T         with local_rows, the shard's tf.IndexedSlices
//
// Each of the three ops takes lists: a lookup is one place in each list. Python builds a node for each lookup. The pass
// in tf/graph/grouping.h joins the nodes that can run together, so all tables share one exchange.
//
// A kernel's Prepare does the work that a rank can do by itself, on TensorFlow's threads and concurrently with other
// kernels: it drops duplicates, sorts, sums gradients, and makes all checks. The lane only exchanges and places rows.
//
// Between the steps, values are ordinary tensors, and a rewritten graph may have others there. So each step checks its
// inputs before it uses an index.
#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/capi/capi.h"
#include "core/sharding/lookup.h"
#include "core/telemetry/clock.h"
#include "tensorflow/core/util/work_sharder.h"
#include "tf/bridge/host_memory.h"
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
using tf::shape_inference::ShapeHandle;

// The values of the attribute `ids_are`: the ids of a lookup are numbers of rows of a sharded table, or keys of a
// dynamic table, which may be sent with their counts. Rows of a replicated variable have no route. It is not among the
// tables that are counted.
constexpr std::string_view kRows = "rows", kReplicatedRows = "replicated_rows", kCountedKeys = "counted_keys";
#define LOCKSTEP_IDS_ARE_ATTR "ids_are: list({'rows', 'keys', 'counted_keys'}) >= 1"
#define LOCKSTEP_LOCAL_IDS_ARE_ATTR "ids_are: list({'rows', 'replicated_rows', 'keys', 'counted_keys'}) >= 1"

// The attributes for the check of ids, for their owners and for messages. The number of rows counts the whole table,
// which the shard's shape does not tell.
struct TableAttributes {
  // Points into `ids` and `inverse`; `inverse` is null if it is not to be written.
  LookupIds Lookup(const tf::Tensor& ids, int32_t* inverse) const {
    const DType dtype = ids.dtype() == tf::DT_INT32 ? DType::kInt32 : DType::kInt64;
    LookupIds lookup{name, placement, dtype, Data(ids), ids.NumElements(), inverse};
    lookup.counted = counted;
    lookup.key_placement = key_placement;
    return lookup;
  }

  std::string name;
  std::optional<Placement> placement;  // nothing for a dynamic table
  KeyPlacement key_placement;          // for a dynamic table
  bool counted = false;
  TableCounters* counters = nullptr;  // null for a replicated variable
};

// Reads the attributes of `count` lookups. INVALID_ARGUMENT if the lists do not fit together: num_rows has the number
// of rows for each lookup whose ids are rows, and for no other.
absl::Status ReadTables(tf::OpKernelConstruction* construction, size_t count, std::vector<TableAttributes>* tables) {
  std::vector<std::string> names, ids_are;
  std::vector<int64_t> rows;
  TF_RETURN_IF_ERROR(construction->GetAttr("tables", &names));
  TF_RETURN_IF_ERROR(construction->GetAttr("ids_are", &ids_are));
  TF_RETURN_IF_ERROR(construction->GetAttr("num_rows", &rows));
  const auto are_rows = [](std::string_view are) { return are == kRows || are == kReplicatedRows; };
  const auto of_rows = static_cast<size_t>(std::count_if(ids_are.begin(), ids_are.end(), are_rows));
  if (names.size() != count || ids_are.size() != count) {
    return absl::InvalidArgumentError(absl::StrCat("'", construction->def().name(), "': N = ", count, ", but ",
                                                   names.size(), " tables and ", ids_are.size(), " ids_are"));
  }
  if (rows.size() != of_rows || std::any_of(rows.begin(), rows.end(), [](int64_t number) { return number < 0; })) {
    return absl::InvalidArgumentError(absl::StrCat("'", construction->def().name(), "': num_rows is [",
                                                   absl::StrJoin(rows, ", "), "], wanted ", of_rows,
                                                   " numbers >= 0, one for each 'rows' in ids_are"));
  }
  auto next_rows = rows.begin();
  for (size_t i = 0; i < count; ++i) {
    TableAttributes& table = tables->emplace_back();
    table.name = std::move(names[i]);
    if (ids_are[i] != kReplicatedRows) table.counters = &ProcessTelemetry()->Table(table.name);
    if (are_rows(ids_are[i])) table.placement = Placement(*next_rows++);
    table.counted = ids_are[i] == kCountedKeys;
  }
  return absl::OkStatus();
}

// Reads where the rows and keys of a route's tables are. INVALID_ARGUMENT if the lists do not fit to the lookups.
absl::Status ReadPlacements(tf::OpKernelConstruction* construction, std::vector<TableAttributes>* tables) {
  std::vector<int64_t> blocks, first_ranks;
  TF_RETURN_IF_ERROR(construction->GetAttr("blocks", &blocks));
  TF_RETURN_IF_ERROR(construction->GetAttr("first_ranks", &first_ranks));
  std::vector<Placement*> placements;
  for (TableAttributes& table : *tables) {
    if (table.placement) placements.push_back(&*table.placement);
  }
  if (blocks.size() != placements.size() || first_ranks.size() != placements.size()) {
    return absl::InvalidArgumentError(absl::StrCat("'", construction->def().name(), "': got ", blocks.size(),
                                                   " blocks and ", first_ranks.size(), " first_ranks, wanted ",
                                                   placements.size(), ", one for each 'rows' in ids_are"));
  }
  for (size_t i = 0; i < placements.size(); ++i) {
    if (blocks[i] < 1 || first_ranks[i] < 0) {
      return absl::InvalidArgumentError(absl::StrCat("'", construction->def().name(), "': got a block of ", blocks[i],
                                                     " rows from rank ", first_ranks[i], " on"));
    }
    *placements[i] = Placement(placements[i]->rows, blocks[i], static_cast<int>(first_ranks[i]));
  }
  std::vector<KeyPlacement> key_placements;
  TF_RETURN_IF_ERROR(ReadKeyOwners(construction, tables->size() - placements.size(), &key_placements));
  auto next = key_placements.begin();
  for (TableAttributes& table : *tables) {
    if (!table.placement) table.key_placement = *next++;
  }
  return absl::OkStatus();
}

// Returns what tells apart jobs whose tables are placed differently; nothing if all are by rows from rank 0 on, or by
// the hash of keys.
std::string SignatureOf(const std::vector<TableAttributes>& tables) {
  std::string text;
  bool is_default = true;
  for (const TableAttributes& table : tables) {
    if (table.placement) {
      is_default = is_default && table.placement->block == 1 && table.placement->first == 0;
      absl::StrAppend(&text, table.placement->block, "@", table.placement->first, " ");
    } else {
      is_default = is_default && table.key_placement == KeyPlacement();
      absl::StrAppend(&text, table.key_placement.number(), " ");
    }
  }
  return is_default ? "" : PlacementSignature(text);
}

// Runs `plan` for each of `count` lookups, on TensorFlow's threads if there are several. Returns the first error by
// number, not by time.
Status ForEachLookup(tf::OpKernelContext* context, int count, const std::function<Status(int)>& plan) {
  if (count == 1) return plan(0);
  std::vector<Status> results(count, OkStatus());
  const auto* threads = context->device()->tensorflow_cpu_worker_threads();
  // A lookup's ids cost far more than starting its work on a thread.
  constexpr int64_t kCyclesPerLookup = 100'000;
  tf::Shard(threads->num_threads, threads->workers, count, kCyclesPerLookup, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) results[i] = plan(static_cast<int>(i));
  });
  for (Status& result : results) LOCKSTEP_RETURN_IF_ERROR(std::move(result));
  return OkStatus();
}

// Inverse and send_splits are written before the exchange; local_rows and recv_splits are its results. All outputs of
// known size are allocated here, while a failure can still be declined.
//
// An example with 2 ranks: rank 0 looks up 7 4 7, rank 1 looks up 4 6.
//
//             send_splits   recv_splits   inverse   local_rows                       asked by
//   rank 0    1 1           1 2           1 0 1     2 | 2 3     ids 4 | 4 6          rank 0 | rank 1
//   rank 1    2 0           1 0           0 1       3           id  7                rank 0
//
// Row 4 is served twice, once to each rank, and rank 1's part of the shard is read for one id only.
class RouteKernel : public CollectiveKernel {
 public:
  explicit RouteKernel(tf::OpKernelConstruction* construction) : CollectiveKernel(construction) {
    const auto count = static_cast<size_t>(construction->num_outputs() / 4);
    OP_REQUIRES_OK(construction, ReadTables(construction, count, &tables_));
    OP_REQUIRES_OK(construction, ReadPlacements(construction, &tables_));
    OP_REQUIRES_OK(construction, ReadStage(construction, &stage_));
    exchange_name_ = absl::StrCat(collective_name(), SignatureOf(tables_));
    const auto counted = static_cast<size_t>(
        std::count_if(tables_.begin(), tables_.end(), [](const TableAttributes& table) { return table.counted; }));
    OP_REQUIRES_OK(construction, construction->GetAttr("P", &problems_));
    const auto inputs = static_cast<size_t>(construction->num_inputs() - problems_);
    const size_t seen = inputs - std::min(inputs, count);
    OP_REQUIRES(construction, (seen == 0 || seen == counted) && inputs == count + seen,
                absl::InvalidArgumentError(
                    absl::StrCat("route '", construction->def().name(), "': ", inputs - seen, " lookups, ", counted,
                                 " of them with counted keys, but N = ", count, " and S = ", seen)));
    int next_seen = static_cast<int>(count);
    for (const TableAttributes& table : tables_) {
      seen_.emplace_back();
      if (seen > 0 && table.counted) seen_.back() = next_seen++;
    }
  }

 protected:
  Result<Exchange> Prepare(const Call& call) override {
    tf::OpKernelContext* const context = call.context;
    const int size = call.engine.communicator().size();
    const int count = static_cast<int>(tables_.size());
    LOCKSTEP_RETURN_IF_ERROR(ReportedProblem(context, problems_));
    LOCKSTEP_ASSIGN_OR_RETURN(const auto relay_ranks, RelayRanksOf(stage_, call.engine.communicator()));
    RoutePlan plan;
    plan.local_rows.resize(count);
    plan.send.resize(count);
    plan.widths.resize(count);
    std::vector<int64_t*> recv(count);
    LOCKSTEP_RETURN_IF_ERROR(ForEachLookup(context, count, [&](int i) -> Status {
      const int64_t begin_ns = SteadyNs();
      const tf::Tensor& ids = context->input(i);
      LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * inverse, AllocateTensor(context, count + i, ids.shape()));
      LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * send_splits, AllocateTensor(context, 2 * count + i, {size}));
      LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * recv_splits, AllocateTensor(context, 3 * count + i, {size}));
      LookupIds lookup = tables_[i].Lookup(ids, static_cast<int32_t*>(Data(*inverse)));
      if (lookup.placement && lookup.placement->first >= size) {
        return InvalidArgument(absl::StrCat("table '", tables_[i].name, "': its rows begin on rank ",
                                            lookup.placement->first, "; the job has ", size, " ranks"));
      }
      lookup.relay_ranks = relay_ranks;
      if (seen_[i]) {
        LOCKSTEP_ASSIGN_OR_RETURN(lookup.times, TimesOf(context->input(*seen_[i]), ids, tables_[i].name));
      }
      LOCKSTEP_ASSIGN_OR_RETURN(RoutePlan own, PlanRoute(size, {&lookup, 1}));
      // The second of two stages looks up ids that were counted in the first.
      if (stage_ != Stage::kOwner) {
        const int64_t distinct = std::accumulate(own.send[0].begin(), own.send[0].end(), int64_t{0});
        CountLookup(*tables_[i].counters, ids.NumElements(), distinct, begin_ns);
      }
      std::copy(own.send[0].begin(), own.send[0].end(), send_splits->flat<int64_t>().data());
      recv[i] = recv_splits->flat<int64_t>().data();
      plan.local_rows[i] = std::move(own.local_rows[0]);
      plan.send[i] = std::move(own.send[0]);
      plan.widths[i] = own.widths[0];
      return OkStatus();
    }));

    // The plan is shared, because an Exchange may be copied and plans are large.
    return Exchange([this, context, recv = std::move(recv),
                     plan = std::make_shared<RoutePlan>(std::move(plan))](Communicator& communicator) -> Status {
      std::vector<Splits> splits(recv.size());
      LOCKSTEP_RETURN_IF_ERROR(ExchangeRoute(
          communicator, exchange_name_, *plan, splits, [context, plan](size_t i, int64_t rows) -> Result<int64_t*> {
            tf::TensorShape shape({rows});
            if (plan->widths[i] > 1) shape.AddDim(plan->widths[i]);
            LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * local_rows, AllocateTensor(context, static_cast<int>(i), shape));
            return static_cast<int64_t*>(Data(*local_rows));
          }));
      for (size_t i = 0; i < recv.size(); ++i) {
        std::copy(splits[i].recv.begin(), splits[i].recv.end(), recv[i]);
        if (stage_ == Stage::kHost) continue;
        tables_[i].counters->AddServed(std::accumulate(splits[i].recv.begin(), splits[i].recv.end(), int64_t{0}));
      }
      return OkStatus();
    });
  }

 private:
  Stage stage_ = Stage::kOnly;
  std::vector<TableAttributes> tables_;
  std::string exchange_name_;             // ranks that place tables differently have different names, and get an error
  std::vector<std::optional<int>> seen_;  // for each lookup, the input with its ids' counts, if there is one
  int problems_ = 0;                      // inputs with errors of the steps before, which are the last ones
};

// The inputs of the two steps after a route, for lookup `i` of `count`: values and the route's outputs. Valid while the
// kernel's context is.
struct RoutedInputs {
  RoutedInputs(tf::OpKernelContext* context, int count, int i)
      : values(context->input(i)),
        inverse(context->input(count + i)),
        send(AsSpan<int64_t>(context->input(2 * count + i))),
        recv(AsSpan<int64_t>(context->input(3 * count + i))) {}

  const int32_t* places() const { return static_cast<const int32_t*>(Data(inverse)); }

  const tf::Tensor& values;
  const tf::Tensor& inverse;
  std::span<const int64_t> send;  // should be [R]; the core checks that
  std::span<const int64_t> recv;
};

// The values of the attribute `rows_of`: rows and gradients belong to all ids, or to the distinct ones.
constexpr std::string_view kDistinctIds = "distinct_ids";
#define LOCKSTEP_ROWS_OF_ATTR "rows_of: list({'ids', 'distinct_ids'}) >= 1"

// Reads `rows_of`: for each of `count` lookups, whether its rows belong to distinct ids. INVALID_ARGUMENT for another
// number of them.
absl::Status ReadRowsOf(tf::OpKernelConstruction* construction, int count, std::vector<bool>* distinct) {
  std::vector<std::string> rows_of;
  TF_RETURN_IF_ERROR(construction->GetAttr("rows_of", &rows_of));
  if (static_cast<int>(rows_of.size()) != count) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", construction->def().name(), "': N = ", count, ", but ", rows_of.size(), " rows_of"));
  }
  for (const std::string& of : rows_of) distinct->push_back(of == kDistinctIds);
  return absl::OkStatus();
}

// Returns the shape of the ids of a lookup, or of the distinct ones. INVALID_ARGUMENT for splits that are none; a route
// has fewer than 2^31 ids.
Result<tf::TensorShape> ShapeOfIds(const tf::Tensor& inverse, std::span<const int64_t> send, bool distinct) {
  if (!distinct) return inverse.shape();
  int64_t sum = 0;
  for (const int64_t count : send) {
    if (count < 0 || count > inverse.NumElements()) {
      return InvalidArgument(absl::StrCat("a split of ", count, " distinct ids, of ", inverse.NumElements(), " ids"));
    }
    sum += count;
  }
  return tf::TensorShape({sum});
}

// Rows are only moved, so any type would do; LOCKSTEP_DTYPES are the types of tables.
class CombineKernel : public CollectiveKernel {
 public:
  explicit CombineKernel(tf::OpKernelConstruction* construction) : CollectiveKernel(construction) {
    OP_REQUIRES_OK(construction, ReadRowsOf(construction, construction->num_outputs(), &distinct_));
  }

 protected:
  Result<Exchange> Prepare(const Call& call) override {
    const int count = call.context->num_outputs();
    std::vector<LookupRows> lookups(count);
    for (int i = 0; i < count; ++i) {
      LOCKSTEP_ASSIGN_OR_RETURN(lookups[i], Lookup(call.context, RoutedInputs(call.context, count, i), i));
    }
    // Errors of only this rank are found here, while they can be declined.
    LOCKSTEP_RETURN_IF_ERROR(
        CheckRows(call.engine.communicator().size(), lookups).WithPrefix(absl::StrCat("combine '", name(), "': ")));
    return Exchange([this, lookups = std::move(lookups)](Communicator& communicator) {
      return Combine(communicator, collective_name(), lookups);
    });
  }

 private:
  Result<LookupRows> Lookup(tf::OpKernelContext* context, const RoutedInputs& in, int output) const {
    const tf::Tensor& rows = in.values;
    if (rows.dims() < 1) {
      return InvalidArgument(absl::StrCat("combine '", name(), "': got a scalar, wanted rows [M, ...]"));
    }
    tf::TensorShape row = rows.shape();
    row.RemoveDim(0);
    const bool distinct = distinct_[output];
    LOCKSTEP_ASSIGN_OR_RETURN(tf::TensorShape shape, ShapeOfIds(in.inverse, in.send, distinct));
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(shape.AppendShapeWithStatus(row)));
    LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * out, AllocateTensor(context, output, shape));
    return LookupRows{in.send,          in.recv,     row.num_elements() * tf::DataTypeSize(rows.dtype()),    Data(rows),
                      rows.dim_size(0), in.places(), distinct ? out->dim_size(0) : in.inverse.NumElements(), Data(*out),
                      distinct};
  }

  std::vector<bool> distinct_;  // for each lookup
};

// The sums are made here, before the lane, so that sums of different tables run in parallel. The lane only sends them.
class CombineGradientKernel : public CollectiveKernel {
 public:
  explicit CombineGradientKernel(tf::OpKernelConstruction* construction) : CollectiveKernel(construction) {
    OP_REQUIRES_OK(construction, ReadRowsOf(construction, construction->num_outputs(), &distinct_));
    OP_REQUIRES_OK(construction, construction->GetAttr("slices", &slices_));
    const auto count = static_cast<size_t>(construction->num_outputs());
    if (slices_.empty()) slices_.resize(count, kNoSlice);
    bool fits = slices_.size() == count;
    for (size_t i = 0; fits && i < count; ++i) {
      fits = slices_[i] >= kNoSlice && (slices_[i] == kNoSlice || !distinct_[i]);
    }
    OP_REQUIRES(construction, fits,
                absl::InvalidArgumentError(absl::StrCat(
                    "'", construction->def().name(), "': got slices [", absl::StrJoin(slices_, ", "), "] for ", count,
                    " lookups, wanted none, or for each lookup -1 or a number >= 0; -1 for distinct ids")));
  }

 protected:
  Result<Exchange> Prepare(const Call& call) override {
    const int count = call.context->num_outputs();
    auto lookups = std::make_shared<std::vector<LookupGradient>>(count);
    std::vector<std::optional<GradientSums>> summed(count);
    LOCKSTEP_RETURN_IF_ERROR(
        ForEachLookup(call.context, count, [&](int i) -> Status {
          tf::Tensor copy;  // is read only by SumGradients
          LOCKSTEP_ASSIGN_OR_RETURN((*lookups)[i],
                                    Lookup(call.context, RoutedInputs(call.context, count, i), i, &copy));
          LOCKSTEP_ASSIGN_OR_RETURN(summed[i], SumGradients(call.engine.communicator(), {&(*lookups)[i], 1}));
          return OkStatus();
        }).WithPrefix(absl::StrCat("gradient of combine '", name(), "': ")));
    auto sums = std::make_shared<GradientSums>();
    for (std::optional<GradientSums>& own : summed) sums->sums.push_back(std::move(own->sums[0]));
    return Exchange([this, lookups, sums](Communicator& communicator) {
      return ExchangeGradients(communicator, collective_name(), *lookups, *sums);
    });
  }

 private:
  static constexpr int64_t kNoSlice = -1;

  // Returns the gradient of one lookup. `copy` gets the memory of a gradient that has to be copied.
  Result<LookupGradient> Lookup(tf::OpKernelContext* context, const RoutedInputs& in, int output,
                                tf::Tensor* copy) const {
    const bool distinct = distinct_[output];
    LOCKSTEP_ASSIGN_OR_RETURN(const tf::TensorShape ids, ShapeOfIds(in.inverse, in.send, distinct));
    const int64_t slice = slices_[output];
    const tf::TensorShape& given = in.values.shape();
    tf::TensorShape row = given;
    if (slice != kNoSlice) {
      if (given.dims() < 2 || slice >= given.dim_size(1)) {
        return InvalidArgument(
            absl::StrCat("got shape ", given.DebugString(), ", wanted more than ", slice, " slices in dimension 1"));
      }
      row.RemoveDim(1);
    }
    // Compares [ids..., row...] with the ids' shape, dimension by dimension: the number of elements would accept a
    // transposed gradient. The dimensions after the ids' are the row's.
    for (int i = 0; i < ids.dims(); ++i) {
      if (row.dims() == 0 || row.dim_size(0) != ids.dim_size(i)) {
        return InvalidArgument(absl::StrCat("got shape ", given.DebugString(), ", wanted ", ids.DebugString(),
                                            " and the row's dimensions"));
      }
      row.RemoveDim(0);
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const DType dtype, ToDType(in.values.dtype()));
    // The route has agreed on the number of arrivals, so the output can be allocated and received into. SumGradients
    // finds negative counts.
    int64_t served = 0;
    for (int64_t count : in.recv) served += std::max<int64_t>(0, count);
    tf::TensorShape shape = row;
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(shape.InsertDimWithStatus(0, served)));
    LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * out, AllocateTensor(context, output, shape));
    LookupGradient gradient{
        in.send,    in.recv, dtype, row.num_elements(), Data(in.values), in.places(), ids.num_elements(),
        Data(*out), distinct};
    if (slice == kNoSlice || given.num_elements() == 0) return gradient;
    // The slice consists of runs of `run` elements, one for each index of dimension 0. The next one begins `stride`
    // elements later.
    int64_t run = 1;
    for (int d = 2; d < given.dims(); ++d) run *= given.dim_size(d);
    const int64_t stride = given.dim_size(1) * run;
    const char* const begin = static_cast<const char*>(Data(in.values)) + slice * run * DTypeSize(dtype);
    if (ids.dims() > 0) {  // a run has whole rows
      gradient.gradient = begin;
      gradient.run = ids.num_elements() / given.dim_size(0);
      gradient.stride = stride;
      return gradient;
    }
    // The slice is the row of a single id, in pieces: dimension 0 is the row's own.
    LOCKSTEP_ASSIGN_OR_RETURN(*copy, AllocateTemporary(context, in.values.dtype(), row));
    const int64_t bytes = run * DTypeSize(dtype);
    for (int64_t i = 0; i < given.dim_size(0); ++i) {
      std::memcpy(static_cast<char*>(Data(*copy)) + i * bytes, begin + i * stride * DTypeSize(dtype), bytes);
    }
    gradient.gradient = Data(*copy);
    return gradient;
  }

  std::vector<bool> distinct_;   // for each lookup
  std::vector<int64_t> slices_;  // for each lookup, or kNoSlice
};

// On the only rank of a job, ids need no route, but they need its check of their range. The message of TensorFlow's
// gather does not name the table, and a GPU does not check. The op is not a collective; it returns the ids, so that the
// gather depends on it.
class CheckIdsKernel : public tf::OpKernel {
 public:
  explicit CheckIdsKernel(tf::OpKernelConstruction* construction) : OpKernel(construction) {
    int64_t rows = 0;
    OP_REQUIRES_OK(construction, construction->GetAttr("table", &table_.name));
    OP_REQUIRES_OK(construction, construction->GetAttr("num_rows", &rows));
    table_.placement = Placement(rows);
    table_.counters = &ProcessTelemetry()->Table(table_.name);
  }

  void Compute(tf::OpKernelContext* context) override {
    const tf::Tensor& ids = context->input(0);
    OP_REQUIRES_OK(context, ToTensorFlow(CheckIds(table_.Lookup(ids, nullptr))));
    table_.counters->AddLookup(ids.NumElements());
    table_.counters->AddServed(ids.NumElements());
    context->set_output(0, ids);
  }

 private:
  TableAttributes table_;
};

// The first step of a lookup whose rows are all on this rank: it drops duplicates and checks the ids, like a route, and
// exchanges nothing. Pooled lookups have a row for each distinct id; others make no such step.
class DistinctKernel : public tf::OpKernel {
 public:
  explicit DistinctKernel(tf::OpKernelConstruction* construction) : OpKernel(construction) {
    const int count = construction->num_outputs() / 2;
    OP_REQUIRES_OK(construction, ReadTables(construction, count, &tables_));
    OP_REQUIRES(construction, construction->num_inputs() == count,
                absl::InvalidArgumentError(absl::StrCat("'", construction->def().name(), "': N = ", count, ", but ",
                                                        construction->num_inputs(), " lookups")));
  }

  void Compute(tf::OpKernelContext* context) override {
    context->SetStatus(ToTensorFlow(Run(context).WithPrefix(absl::StrCat("'", name(), "': "))));
  }

 private:
  Status Run(tf::OpKernelContext* context) const {
    const int count = static_cast<int>(tables_.size());
    return ForEachLookup(context, count, [&](int i) -> Status {
      const int64_t begin_ns = SteadyNs();
      const tf::Tensor& ids = context->input(i);
      LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * inverse, AllocateTensor(context, count + i, ids.shape()));
      const LookupIds lookup = tables_[i].Lookup(ids, static_cast<int32_t*>(Data(*inverse)));
      LOCKSTEP_ASSIGN_OR_RETURN(const RoutePlan plan, PlanRoute(1, {&lookup, 1}));
      const int64_t distinct = plan.send[0][0];
      tf::TensorShape shape({distinct});
      if (plan.widths[0] > 1) shape.AddDim(plan.widths[0]);
      LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor * out, AllocateTensor(context, i, shape));
      std::copy(plan.local_rows[0].begin(), plan.local_rows[0].end(), static_cast<int64_t*>(Data(*out)));
      if (tables_[i].counters != nullptr) {
        CountLookup(*tables_[i].counters, ids.NumElements(), distinct, begin_ns);
        tables_[i].counters->AddServed(distinct);
      }
      return OkStatus();
    });
  }

  std::vector<TableAttributes> tables_;
};

// Sets the shapes of the first output and of `inverse`, which have their places among the outputs of a route as well.
absl::Status DistinctShapes(InferenceContext* c, int count) {
  if (c->num_inputs() < count) {
    return absl::InvalidArgumentError(absl::StrCat(c->num_inputs(), " lookups, but N = ", count));
  }
  std::vector<std::string> ids_are;
  TF_RETURN_IF_ERROR(c->GetAttr("ids_are", &ids_are));
  for (int i = 0; i < count; ++i) {
    const bool counted = i < static_cast<int>(ids_are.size()) && ids_are[i] == kCountedKeys;
    c->set_output(i, counted ? c->Matrix(c->UnknownDim(), 2) : c->Vector(c->UnknownDim()));
    c->set_output(count + i, c->input(i));
  }
  return absl::OkStatus();
}

// Sets the shapes that are known before the run: inverse has the shape of the ids. M depends on all ranks' ids, and R
// on the job, which the graph does not know.
absl::Status RouteShapes(InferenceContext* c) {
  const int count = c->num_outputs() / 4;
  TF_RETURN_IF_ERROR(DistinctShapes(c, count));
  for (int i = 0; i < 2 * count; ++i) c->set_output(2 * count + i, c->Vector(c->UnknownDim()));
  return absl::OkStatus();
}

// Returns the shape of lookup `i`'s ids, or of its distinct ones: their number is known in the run.
absl::Status ShapeOfIds(InferenceContext* c, int i, ShapeHandle* ids) {
  std::vector<std::string> rows_of;
  TF_RETURN_IF_ERROR(c->GetAttr("rows_of", &rows_of));
  const bool distinct = i < static_cast<int>(rows_of.size()) && rows_of[i] == kDistinctIds;
  *ids = distinct ? c->Vector(c->UnknownDim()) : c->input(c->num_outputs() + i);
  return absl::OkStatus();
}

// Sets the shape to the ids' dimensions, then a row's, as tf.gather does.
absl::Status CombineShape(InferenceContext* c) {
  for (int i = 0; i < c->num_outputs(); ++i) {
    ShapeHandle ids, row, out;
    TF_RETURN_IF_ERROR(ShapeOfIds(c, i, &ids));
    TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(i), 1, &row));
    TF_RETURN_IF_ERROR(c->Subshape(row, 1, &row));
    TF_RETURN_IF_ERROR(c->Concatenate(ids, row, &out));
    c->set_output(i, out);
  }
  return absl::OkStatus();
}

// The dimensions after the ids' are the row's; they are known if both numbers of dimensions are.
absl::Status CombineGradientShape(InferenceContext* c) {
  std::vector<int64_t> slices;
  TF_RETURN_IF_ERROR(c->GetAttr("slices", &slices));
  slices.resize(c->num_outputs(), -1);
  for (int i = 0; i < c->num_outputs(); ++i) {
    ShapeHandle ids, row = c->UnknownShape(), out;
    TF_RETURN_IF_ERROR(ShapeOfIds(c, i, &ids));
    if (c->RankKnown(c->input(i)) && c->RankKnown(ids)) {
      ShapeHandle gradient = c->input(i);
      if (slices[i] >= 0) {  // without dimension 1, which counts the slices
        ShapeHandle first, rest;
        TF_RETURN_IF_ERROR(c->WithRankAtLeast(gradient, 2, &gradient));
        TF_RETURN_IF_ERROR(c->Subshape(gradient, 0, 1, &first));
        TF_RETURN_IF_ERROR(c->Subshape(gradient, 2, &rest));
        TF_RETURN_IF_ERROR(c->Concatenate(first, rest, &gradient));
      }
      TF_RETURN_IF_ERROR(c->Subshape(gradient, c->Rank(ids), &row));
    }
    TF_RETURN_IF_ERROR(c->Concatenate(c->Vector(c->UnknownDim()), row, &out));
    c->set_output(i, out);
  }
  return absl::OkStatus();
}

LOCKSTEP_COLLECTIVE_KERNEL("LockstepRoute", RouteKernel);
LOCKSTEP_COLLECTIVE_KERNEL("LockstepCombine", CombineKernel);
LOCKSTEP_COLLECTIVE_KERNEL("LockstepCombineGradient", CombineGradientKernel);
REGISTER_KERNEL_BUILDER(Name("LockstepCheckIds").Device(tf::DEVICE_CPU), CheckIdsKernel);
REGISTER_KERNEL_BUILDER(Name("LockstepDistinct").Device(tf::DEVICE_CPU), DistinctKernel);

LOCKSTEP_GROUPED_COLLECTIVE_OP("LockstepRoute")
    .Input("ids: Tids")
    .Input("seen: S * int64")
    .Input("problems: P * string")
    .Output("local_rows: N * int64")
    .Output("inverse: N * int32")
    .Output("send_splits: N * int64")
    .Output("recv_splits: N * int64")
    .Attr("N: int >= 1")
    .Attr("S: int >= 0")
    .Attr("P: int >= 0")
    .Attr(LOCKSTEP_STAGE_ATTR)
    .Attr("Tids: list({int32, int64}) >= 1")
    .Attr(LOCKSTEP_IDS_ARE_ATTR)
    .Attr("num_rows: list(int)")
    .Attr("blocks: list(int)")
    .Attr("first_ranks: list(int)")
    .Attr(LOCKSTEP_KEY_OWNERS_ATTR)
    .Attr("tables: list(string) >= 1")
    .Attr(LOCKSTEP_SHARD_ROWS_ATTR ": bool = true")
    .SetShapeFn(RouteShapes)
    .Doc(R"doc(
Makes the first step of N lookups: sends each distinct id to the rank that owns its row. One exchange.

ids: any shape; row numbers in [0, num_rows), else all ranks fail with InvalidArgument; or keys, any number.
seen: for each lookup of counted keys: the count of each key, in the shape of the ids; or no tensors: once each.
problems: errors of the steps before, as text (problems.h); if one is not "", all ranks fail with InvalidArgument.
local_rows: [M]; the rows of this rank's shard that the ranks ask for, in rank order. For a dynamic table the keys;
  for counted keys [M, 2]: each key and the asking rank's count.
inverse: the shape of ids; the index of each id among the distinct ones, sorted by owner.
send_splits: [R]; the number of distinct ids sent to each rank.
recv_splits: [R]; the number received from each rank; M in sum.
N: the number of ids tensors, and of tensors of each output.
S: the number of seen tensors.
P: the number of problems.
stage: 'only', all the way to the owners; 'host', to the relay ranks of this host, with local_rows
  that are ids; 'owner', from the relay ranks to the owners.
ids_are: for each lookup: 'rows', row numbers of a sharded table; 'keys', keys of a dynamic table;
  'counted_keys', keys of a dynamic table that are sent with their counts.
num_rows: for each lookup of 'rows': the number of rows of the whole table. Other lookups have no number here.
blocks, first_ranks: for each lookup of 'rows': the rows are dealt in blocks of this number, from this rank on.
key_owners: for each lookup of keys: -2, a hash of the key names its owner; -1, the key's remainder by R; r >= 0, rank r
  owns all keys.
tables: the name of each lookup's table, for messages.
)doc");

LOCKSTEP_GROUPED_COLLECTIVE_OP("LockstepCombine")
    .Input("rows: T")
    .Input("inverse: N * int32")
    .Input("send_splits: N * int64")
    .Input("recv_splits: N * int64")
    .Output("combined: T")
    .Attr("N: int >= 1")
    .Attr(LOCKSTEP_STAGE_ATTR)
    .Attr(LOCKSTEP_ROWS_OF_ATTR)
    .Attr("gradients: list({'option', 'sum'}) >= 1")
    .Attr("T: list(" LOCKSTEP_DTYPES ") >= 1")
    .SetShapeFn(CombineShape)
    .Doc(R"doc(
Makes the last step of N lookups: sends rows to the ranks that asked and places one for each id. One exchange.

rows: [M, ...]; one for each of the route's local_rows.
inverse: the route's; so are the splits.
stage: the route's.
rows_of: for each lookup: 'ids', a row for each id; 'distinct_ids', a row for each distinct one.
gradients: for each lookup, read by Python's gradient function only: 'option', gradients are weighted and averaged over
  the workers as the options of the job say; 'sum', they are summed over the workers.
combined: the shape of inverse, or [U] for distinct ids, then that of a row.
)doc");

LOCKSTEP_GROUPED_COLLECTIVE_OP("LockstepCombineGradient")
    .Input("gradient: T")
    .Input("inverse: N * int32")
    .Input("send_splits: N * int64")
    .Input("recv_splits: N * int64")
    .Output("row_gradients: T")
    .Attr("N: int >= 1")
    .Attr(LOCKSTEP_STAGE_ATTR)
    .Attr(LOCKSTEP_ROWS_OF_ATTR)
    .Attr("T: list({float, double, half, bfloat16}) >= 1")
    .Attr("slices: list(int) = []")
    .SetShapeFn(CombineGradientShape)
    .Doc(R"doc(
Computes LockstepCombine's gradient: sums this rank's gradients per distinct id and sends them to the owners.

gradient: the shape of combined.
stage: the route's.
rows_of: combined's; gradients of distinct ids are sums already.
slices: empty, or for each lookup: -1; or k: the gradient is slice k of dimension 1 of `gradient`, as
  TensorFlow's Unpack gives it. Not for distinct ids. A pass sets it (tf/graph/stacked_gradients_pass.cc).
row_gradients: [M, ...]; in rank order.
)doc");

REGISTER_OP("LockstepDistinct")
    .Input("ids: Tids")
    .Output("distinct: N * int64")
    .Output("inverse: N * int32")
    .Attr("N: int >= 1")
    .Attr("Tids: list({int32, int64}) >= 1")
    .Attr(LOCKSTEP_LOCAL_IDS_ARE_ATTR)
    .Attr("num_rows: list(int)")
    .Attr("tables: list(string) >= 1")
    .Attr(LOCKSTEP_GROUP_ATTR ": bool = true")
    .Attr(LOCKSTEP_SHARD_ROWS_ATTR ": bool = true")
    .SetShapeFn([](InferenceContext* c) { return DistinctShapes(c, c->num_outputs() / 2); })
    .Doc(R"doc(
Drops the duplicates of N lookups whose rows are all on this rank, without an exchange.

ids, ids_are, num_rows, tables: as for LockstepRoute. 'replicated_rows' are those of a replicated variable; its lookups
  are not counted.
distinct: [U]; the distinct ids in the order of their first appearance; [U, 2] for counted keys, each with its count.
inverse: the shape of ids; the index of each id among the distinct ones.
)doc");

REGISTER_OP("LockstepCheckIds")
    .Input("ids: Tids")
    .Output("checked: Tids")
    .Attr("Tids: {int32, int64}")
    .Attr("num_rows: int >= 0")
    .Attr("table: string")
    .Attr(LOCKSTEP_SHARD_ROWS_ATTR ": bool = true")
    .SetShapeFn(tf::shape_inference::UnchangedShape)
    .Doc(R"doc(
Returns the ids, or fails with InvalidArgument if one is not in [0, num_rows).
)doc");

}  // namespace
}  // namespace lockstep
