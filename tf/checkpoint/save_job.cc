#include "tf/checkpoint/save_job.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/crash_point.h"
#include "core/comm/collective/arrivals.h"
#include "tensorflow/core/framework/tensor_slice.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/util/saved_tensor_slice_util.h"
#include "tf/bridge/convert.h"
#include "tf/checkpoint/bundle_rows.h"
#include "tf/checkpoint/commit.h"
#include "tf/checkpoint/job_steps.h"
#include "tf/checkpoint/table_layout.h"

namespace lockstep {

namespace tf = ::tensorflow;

namespace {

constexpr size_t kKinds = std::tuple_size_v<TableCounts>;
// The limit of a worker's rows of a dynamic table: more than any has, and so few that the sum of all cannot overflow.
constexpr int64_t kMostRows = int64_t{1} << 40;

tf::Tensor IdTensor(int64_t id, std::optional<int64_t> previous) {
  tf::Tensor numbers(tf::DT_INT64, {2});
  numbers.flat<int64_t>()(0) = id;
  numbers.flat<int64_t>()(1) = previous.value_or(TableLayout::kNoCheckpoint);
  return numbers;
}

// TensorFlow reads slices of these types, and of some more.
bool HasSlices(tf::DataType dtype) {
  return dtype == tf::DT_FLOAT || dtype == tf::DT_DOUBLE || dtype == tf::DT_INT32 || dtype == tf::DT_INT64;
}

}  // namespace

void SavedState::Drop() {
  for (const Variable& variable : variables) variable.snapshot->End();
  for (const Shard& shard : shards) shard.snapshot->End();
  for (Dynamic& dynamic : tables) {
    dynamic.snapshot = nullptr;
    dynamic.table->DropSnapshot();
  }
}

SaveJob::SaveJob(std::string name, std::string prefix, Result<SavedState> state)
    : name_(std::move(name)), prefix_(std::move(prefix)), state_(std::move(state)) {}

Status SaveJob::Run(Communicator& communicator) {
  const Status status = Save(communicator);
  file_.reset();
  if (!status.ok()) Drop();
  return status;
}

void SaveJob::Drop() {
  if (state_.ok()) state_->Drop();
}

Status SaveJob::Save(Communicator& communicator) {
  const int rank = communicator.rank(), workers = communicator.size();
  JobSteps steps(communicator, name_);
  steps.Run([&] { return state_.status(); });
  steps.Run([&] { return CountRows(communicator); });
  // Each ends before the long one behind it: a rank that can't open its file stops the others before they write rows.
  steps.Run([&] { return OpenFile(rank, workers); });
  steps.Run([&] { return WriteTensors(rank); });
  steps.Run([&] { return WriteTables(rank, workers); });
  steps.RunTogether([&] { return WriteShards(communicator); });
  steps.Run([&] { return FinishFile(); });
  steps.Run([&] { return Commit(communicator); });
  steps.Run([&] { return EndSnapshots(); });
  return steps.status();
}

Status SaveJob::CountRows(Communicator& communicator) {
  if (state_->tables.empty() && state_->shards.empty()) return OkStatus();
  for (SavedState::Shard& shard : state_->shards) FindChanges(&shard);
  std::vector<SharedNumber> numbers = {
      {"the checkpoint's id", NewCheckpointId(), 1, std::numeric_limits<int64_t>::max()}};
  for (const SavedState::Dynamic& dynamic : state_->tables) {
    const std::string what = absl::StrCat("rows of table '", dynamic.name, "'");
    for (const int64_t count : dynamic.counts) numbers.push_back({what, count, 0, kMostRows});
  }
  for (const SavedState::Shard& shard : state_->shards) {
    numbers.push_back({absl::StrCat("changed rows of table '", shard.table.name, "'"),
                       static_cast<int64_t>(shard.changes.size()), 0, shard.table.placement.rows});
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> all, GatherNumbers(communicator, name_, numbers));
  const auto width = static_cast<int64_t>(numbers.size());
  checkpoint_id_ = all[0];
  for (int64_t column = 1; column < width; ++column) {
    std::vector<int64_t> of_workers;
    for (int64_t worker = 0; worker < communicator.size(); ++worker) of_workers.push_back(all[worker * width + column]);
    parts_.emplace_back(of_workers);
  }
  return OkStatus();
}

void SaveJob::FindChanges(SavedState::Shard* shard) const {
  if (!state_->changes) return;
  VariableSnapshot& snapshot = *shard->snapshot;
  const int64_t rows = snapshot.shape().dim_size(0);
  const int64_t step = std::max<int64_t>(1, kTableStepBytes / std::max<int64_t>(1, snapshot.row_bytes()));
  std::vector<char> data(std::min(step, rows) * snapshot.row_bytes());
  for (int64_t begin = 0; begin < rows; begin += step) {
    const RowRange part{begin, std::min(begin + step, rows)};
    snapshot.Peek(part, data.data());
    shard->tracked->FindChanges(part, data.data(), &shard->changes);
  }
}

Status SaveJob::OpenFile(int rank, int workers) {
  file_.emplace(tf::Env::Default(), FileOf(rank, workers));
  return FromTensorFlow(file_->status());
}

Status SaveJob::WriteTensors(int rank) {
  const bool tracked = std::any_of(state_->shards.begin(), state_->shards.end(), [](const SavedState::Shard& shard) {
    return shard.tracked != nullptr && shard.tracked->tracks();
  });
  if (rank == 0 && tracked) {
    LOCKSTEP_RETURN_IF_ERROR(Add(kCheckpointIdTensor, "", IdTensor(checkpoint_id_, state_->previous)));
  }
  for (const SavedState::Tensor& tensor : state_->tensors) {
    LOCKSTEP_RETURN_IF_ERROR(Add(tensor.name, tensor.slice, tensor.value));
  }
  state_->tensors.clear();
  for (const SavedState::Variable& variable : state_->variables) {
    LOCKSTEP_RETURN_IF_ERROR(WriteVariable(variable));
    End(variable.name, variable.snapshot.get());
  }
  return OkStatus();
}

void SaveJob::End(const std::string& name, VariableSnapshot* snapshot) {
  if (read_.ok()) read_ = snapshot->status().WithPrefix(absl::StrCat("variable '", name, "': "));
  snapshot->End();
}

// A large variable is written piece by piece, so that it is not in memory twice.
Status SaveJob::WriteVariable(const SavedState::Variable& variable) {
  VariableSnapshot& snapshot = *variable.snapshot;
  const int64_t rows = snapshot.shape().dims() == 0 ? 1 : snapshot.shape().dim_size(0);
  const SavedTable whole{variable.name, snapshot.dtype(), snapshot.shape(), Placement(rows)};
  const int64_t piece_rows =
      snapshot.row_bytes() == 0 ? 0
                                : std::max<int64_t>(1, whole.PieceBytes(state_->piece_bytes, 1) / snapshot.row_bytes());
  if (snapshot.shape().dims() == 0 || rows <= piece_rows || piece_rows == 0 || !variable.slice.empty() ||
      !HasSlices(snapshot.dtype())) {
    return Add(variable.name, variable.slice, snapshot.ReadAll());
  }
  for (int64_t begin = 0; begin < rows; begin += piece_rows) {
    const RowRange part{begin, std::min(begin + piece_rows, rows)};
    tf::Tensor piece(whole.dtype, whole.With(part.count()));
    snapshot.Read(part, static_cast<char*>(Data(piece)));
    wrote_ = true;
    LOCKSTEP_RETURN_IF_ERROR(AddRows(&*file_, variable.name, rows, begin, piece));
  }
  return OkStatus();
}

// The rows of dynamic tables that change meanwhile are in memory until they are written, so these come before shards.
Status SaveJob::WriteTables(int rank, int workers) {
  TableFiles files(&*file_, FileOf(rank, workers));
  for (size_t t = 0; t < state_->tables.size(); ++t) {
    SavedState::Dynamic& dynamic = state_->tables[t];
    const auto parts = [&](size_t kind) { return parts_[t * kKinds + kind]; };
    TableShare share{rank, state_->changes, parts(0), parts(1), parts(2)};
    share.checkpoint_id = checkpoint_id_;
    share.previous = state_->previous;
    share.part_rows = state_->part_rows;
    share.clock = dynamic.clock;
    LOCKSTEP_RETURN_IF_ERROR(files.Write(dynamic.table.get(), dynamic.name, std::move(share)));
  }
  LOCKSTEP_RETURN_IF_ERROR(files.Finish());
  wrote_ = wrote_ || files.wrote();
  return OkStatus();
}

Status SaveJob::WriteShards(Communicator& communicator) {
  const int rank = communicator.rank(), workers = communicator.size();
  for (size_t s = 0; s < state_->shards.size(); ++s) {
    SavedState::Shard& shard = state_->shards[s];
    const TableParts& changed = parts_[state_->tables.size() * kKinds + s];
    // If most rows have changed, all are written, in the order of their ids: a restore then reads only its own.
    const bool few = 2 * changed.total() <= shard.table.placement.rows;
    LOCKSTEP_RETURN_IF_ERROR(state_->changes && few
                                 ? AgreeOnStatus(communicator, name_, WriteChanges(rank, workers, shard, changed))
                                 : WriteRows(communicator, &shard));
    End(shard.table.name, shard.snapshot.get());
  }
  return OkStatus();
}

Status SaveJob::WriteRows(Communicator& communicator, SavedState::Shard* shard) {
  const SavedTable& table = shard->table;
  const bool takes = !state_->changes && shard->tracked != nullptr;
  const auto read = [&](RowRange local, char* data) {
    shard->snapshot->Read(local, data);
    if (takes) shard->tracked->Take(local, data);
  };
  const auto take = [&](RowRange rows, const char* data) -> Status {
    tf::Tensor piece(table.dtype, table.With(rows.count()));
    std::copy_n(data, rows.count() * table.row_bytes(), static_cast<char*>(Data(piece)));
    wrote_ = true;
    LOCKSTEP_RETURN_IF_ERROR(AddRows(&*file_, table.name, table.placement.rows, rows.begin, piece));
    PassCrashPoint("shards: part written");
    return OkStatus();
  };
  return RelayToContiguous(communicator, table.Collective(name_), table.moved(), read, take,
                           table.PieceBytes(state_->piece_bytes, communicator.size()));
}

Status SaveJob::WriteChanges(int rank, int workers, const SavedState::Shard& shard, const TableParts& changed) {
  const SavedTable& table = shard.table;
  const auto add = [&](int64_t begin, const tf::Tensor& ids, const tf::Tensor& rows) -> Status {
    wrote_ = true;
    LOCKSTEP_RETURN_IF_ERROR(AddRows(&*file_, ChangedIds(table.name), changed.total(), begin, ids));
    return AddRows(&*file_, ChangedValues(table.name), changed.total(), begin, rows);
  };
  if (changed.total() == 0) {
    return rank == 0 ? add(0, tf::Tensor(tf::DT_INT64, {0}), tf::Tensor(table.dtype, table.With(0))) : OkStatus();
  }
  const int64_t row_bytes = std::max<int64_t>(1, table.row_bytes());
  const int64_t piece_rows = std::max<int64_t>(1, table.PieceBytes(state_->piece_bytes, workers) / row_bytes);
  const auto count = static_cast<int64_t>(shard.changes.size());
  for (int64_t begin = 0; begin < count; begin += piece_rows) {
    const int64_t end = std::min(begin + piece_rows, count);
    tf::Tensor ids(tf::DT_INT64, {end - begin}), rows(table.dtype, table.With(end - begin));
    auto* to = static_cast<char*>(Data(rows));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = shard.changes[i].row;
      ids.flat<int64_t>()(i - begin) = table.placement.GlobalRow(row, rank, workers);
      shard.snapshot->Read({row, row + 1}, to);
      to += table.row_bytes();
    }
    LOCKSTEP_RETURN_IF_ERROR(add(changed.begin(rank) + begin, ids, rows));
    PassCrashPoint("shards: part written");
  }
  return OkStatus();
}

Status SaveJob::FinishFile() {
  LOCKSTEP_RETURN_IF_ERROR(read_);
  LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(file_->Finish()));
  PassCrashPoint("save: file written");
  return OkStatus();
}

Status SaveJob::Commit(Communicator& communicator) {
  const SharedNumber mine = {"the flag whether its file has tensors", wrote_ ? 1 : 0, 0, 1};
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> wrote, GatherNumbers(communicator, name_, {&mine, 1}));
  return communicator.rank() == 0 ? MergeAndMove(wrote) : OkStatus();
}

Status SaveJob::MergeAndMove(const std::vector<int64_t>& wrote) {
  const int workers = static_cast<int>(wrote.size());
  std::vector<std::string> all;
  std::vector<tf::tstring> merged;
  for (int rank = 0; rank < workers; ++rank) {
    all.push_back(FileOf(rank, workers));
    if (wrote[rank] != 0) merged.emplace_back(all.back());
  }
  const bool strings = std::any_of(state_->tables.begin(), state_->tables.end(),
                                   [](const auto& dynamic) { return dynamic.table->strings() != nullptr; });
  if (strings && workers > 1) {
    LOCKSTEP_RETURN_IF_ERROR(JoinStrings(tf::Env::Default(), all, Aside() + "strings"));
    merged.emplace_back(Aside() + "strings");
  }
  PassCrashPoint("save: all written");
  const std::string whole = Aside() + "merged";
  LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(tf::MergeBundles(tf::Env::Default(), merged, whole)));
  return FromTensorFlow(CommitCheckpoint(tf::Env::Default(), whole, prefix_, static_cast<int64_t>(merged.size())));
}

Status SaveJob::EndSnapshots() {
  for (SavedState::Dynamic& dynamic : state_->tables) {
    dynamic.snapshot = nullptr;
    LOCKSTEP_RETURN_IF_ERROR(dynamic.table->EndSnapshot(checkpoint_id_));
  }
  for (const SavedState::Shard& shard : state_->shards) {
    if (shard.tracked != nullptr) shard.tracked->Saved(checkpoint_id_, shard.changes);
  }
  return OkStatus();
}

Status SaveJob::Add(const std::string& name, const std::string& slice, const tf::Tensor& value) {
  wrote_ = true;
  if (slice.empty()) return FromTensorFlow(file_->Add(name, value));
  tf::TensorShape whole, part_shape;
  tf::TensorSlice part(value.dims());
  LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(tf::checkpoint::ParseShapeAndSlice(slice, &whole, &part, &part_shape)));
  if (part_shape != value.shape()) {
    return InvalidArgument(absl::StrCat("tensor '", name, "': its part ", slice, " of a larger one has shape ",
                                        part_shape.DebugString(), ", got ", value.shape().DebugString()));
  }
  return FromTensorFlow(file_->AddSlice(name, whole, part, value));
}

std::string SaveJob::FileOf(int rank, int workers) const {
  return absl::StrFormat("%spart-%05d-of-%05d", Aside(), rank, workers);
}

}  // namespace lockstep
