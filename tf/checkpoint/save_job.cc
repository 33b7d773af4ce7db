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
#include "tf/checkpoint/table_layout.h"

namespace lockstep {

namespace tf = ::tensorflow;

namespace {

constexpr size_t kKinds = std::tuple_size_v<TableCounts>;
// The limit of a worker's rows of a dynamic table: more than any has, and so few that the sum of all cannot overflow.
constexpr int64_t kMostRows = int64_t{1} << 40;

tf::Tensor LinkTensor(int64_t link, std::optional<int64_t> previous) {
  tf::Tensor numbers(tf::DT_INT64, {2});
  numbers.flat<int64_t>()(0) = link;
  numbers.flat<int64_t>()(1) = previous.value_or(TableLayout::kNoLink);
  return numbers;
}

// TensorFlow reads slices of these types, and of some more.
bool HasSlices(tf::DataType dtype) {
  return dtype == tf::DT_FLOAT || dtype == tf::DT_DOUBLE || dtype == tf::DT_INT32 || dtype == tf::DT_INT64;
}

}  // namespace

void SavedState::Drop() {
  for (const Variable& variable : variables) variable.moment->End();
  for (const Shard& shard : shards) shard.moment->End();
  for (Dynamic& dynamic : tables) {
    dynamic.snapshot = nullptr;
    dynamic.table->DropSnapshot();
  }
}

SaveJob::SaveJob(std::string name, std::string prefix, Result<SavedState> state)
    : name_(std::move(name)), prefix_(std::move(prefix)), state_(std::move(state)) {}

Status SaveJob::Run(Communicator& communicator) {
  const Status status = Save(communicator);
  if (!status.ok()) Drop();
  return status;
}

void SaveJob::Drop() {
  if (state_.ok()) state_->Drop();
}

Status SaveJob::Save(Communicator& communicator) {
  LOCKSTEP_RETURN_IF_ERROR(Meet(communicator, name_, state_.status()));
  for (SavedState::Shard& shard : state_->shards) FindChanges(&shard);
  if (!state_->tables.empty() || !state_->shards.empty()) {
    LOCKSTEP_RETURN_IF_ERROR(Meet(communicator, name_, ExchangeCounts(communicator)));
  }
  const std::string path = FileOf(communicator.rank(), communicator.size());
  tf::BundleWriter file(tf::Env::Default(), path);
  LOCKSTEP_RETURN_IF_ERROR(Meet(communicator, name_, FromTensorFlow(file.status())));
  LOCKSTEP_RETURN_IF_ERROR(Meet(communicator, name_, WriteOwn(communicator.rank(), &file)));
  // The rows of dynamic tables that change meanwhile are in memory until they are written, so these come first.
  LOCKSTEP_RETURN_IF_ERROR(Meet(communicator, name_, WriteTables(communicator, &file, path)));
  for (size_t s = 0; s < state_->shards.size(); ++s) {
    const TableParts& changed = parts_[state_->tables.size() * kKinds + s];
    LOCKSTEP_RETURN_IF_ERROR(WriteShard(communicator, &file, &state_->shards[s], changed));
    state_->shards[s].moment->End();  // changes need no copies from here on
  }
  LOCKSTEP_RETURN_IF_ERROR(Meet(communicator, name_, FromTensorFlow(file.Finish())));
  PassCrashPoint("save: file written");

  const SharedNumber mine = {"the sign whether its file has tensors", wrote_ ? 1 : 0, 0, 1};
  const Result<std::vector<int64_t>> wrote = GatherNumbers(communicator, name_, {&mine, 1});
  Status committed = wrote.status();
  if (wrote.ok() && communicator.rank() == 0) committed = MergeAndCommit(*wrote);
  LOCKSTEP_RETURN_IF_ERROR(Meet(communicator, name_, committed));
  return Meet(communicator, name_, EndSnapshots());
}

Status SaveJob::EndSnapshots() {
  for (SavedState::Dynamic& dynamic : state_->tables) {
    dynamic.snapshot = nullptr;
    LOCKSTEP_RETURN_IF_ERROR(dynamic.table->EndSnapshot(link_));
  }
  for (const SavedState::Shard& shard : state_->shards) {
    if (shard.tracked != nullptr) shard.tracked->Saved(link_, shard.changes);
  }
  return OkStatus();
}

Status SaveJob::WriteOwn(int rank, tf::BundleWriter* file) {
  const bool tracked = std::any_of(state_->shards.begin(), state_->shards.end(), [](const SavedState::Shard& shard) {
    return shard.tracked != nullptr && shard.tracked->tracks();
  });
  if (rank == 0 && tracked) {
    LOCKSTEP_RETURN_IF_ERROR(Add(file, kLinkTensor, "", LinkTensor(link_, state_->previous)));
  }
  for (const SavedState::Tensor& tensor : state_->tensors) {
    LOCKSTEP_RETURN_IF_ERROR(Add(file, tensor.name, tensor.slice, tensor.value));
  }
  state_->tensors.clear();
  for (const SavedState::Variable& variable : state_->variables) {
    LOCKSTEP_RETURN_IF_ERROR(WriteVariable(file, variable));
    variable.moment->End();
  }
  return OkStatus();
}

// A large variable is written piece by piece, so that it is not in memory twice.
Status SaveJob::WriteVariable(tf::BundleWriter* file, const SavedState::Variable& variable) {
  VariableMoment& moment = *variable.moment;
  const int64_t rows = moment.shape().dims() == 0 ? 1 : moment.shape().dim_size(0);
  const SavedTable whole{variable.name, moment.dtype(), moment.shape(), Placement(rows)};
  const int64_t piece_rows =
      moment.row_bytes() == 0 ? 0 : std::max<int64_t>(1, whole.PieceBytes(state_->piece_bytes, 1) / moment.row_bytes());
  if (moment.shape().dims() == 0 || rows <= piece_rows || piece_rows == 0 || !variable.slice.empty() ||
      !HasSlices(moment.dtype())) {
    return Add(file, variable.name, variable.slice, moment.ReadAll());
  }
  for (int64_t begin = 0; begin < rows; begin += piece_rows) {
    const RowRange part{begin, std::min(begin + piece_rows, rows)};
    tf::Tensor piece(whole.dtype, whole.With(part.count()));
    moment.Read(part, static_cast<char*>(Data(piece)));
    wrote_ = true;
    LOCKSTEP_RETURN_IF_ERROR(AddRows(file, variable.name, rows, begin, piece));
  }
  return OkStatus();
}

void SaveJob::FindChanges(SavedState::Shard* shard) const {
  if (!state_->changes) return;
  VariableMoment& moment = *shard->moment;
  const int64_t rows = moment.shape().dim_size(0);
  const int64_t step = std::max<int64_t>(1, kTableStepBytes / std::max<int64_t>(1, moment.row_bytes()));
  std::vector<char> data(std::min(step, rows) * moment.row_bytes());
  for (int64_t begin = 0; begin < rows; begin += step) {
    const RowRange part{begin, std::min(begin + step, rows)};
    moment.Peek(part, data.data());
    shard->tracked->FindChanges(part, data.data(), &shard->changes);
  }
}

Status SaveJob::WriteShard(Communicator& communicator, tf::BundleWriter* file, SavedState::Shard* shard,
                           const TableParts& changed) {
  // If most rows have changed, all are written, in the order of their ids: a restore then reads only its own.
  const bool few = 2 * changed.total() <= shard->table.placement.rows;
  if (!state_->changes || !few) return WriteRows(communicator, file, shard);
  return Meet(communicator, name_, WriteChanges(communicator, file, *shard, changed));
}

Status SaveJob::WriteRows(Communicator& communicator, tf::BundleWriter* file, SavedState::Shard* shard) {
  const SavedTable& table = shard->table;
  const bool takes = !state_->changes && shard->tracked != nullptr;
  const auto read = [&](RowRange local, char* data) {
    shard->moment->Read(local, data);
    if (takes) shard->tracked->Take(local, data);
  };
  const auto take = [&](RowRange rows, const char* data) -> Status {
    tf::Tensor piece(table.dtype, table.With(rows.count()));
    std::copy_n(data, rows.count() * table.row_bytes(), static_cast<char*>(Data(piece)));
    wrote_ = true;
    LOCKSTEP_RETURN_IF_ERROR(AddRows(file, table.name, table.placement.rows, rows.begin, piece));
    PassCrashPoint("shards: part written");
    return OkStatus();
  };
  return RelayToContiguous(communicator, table.Collective(name_), table.moved(), read, take,
                           table.PieceBytes(state_->piece_bytes, communicator.size()));
}

Status SaveJob::WriteChanges(const Communicator& communicator, tf::BundleWriter* file, const SavedState::Shard& shard,
                             const TableParts& changed) {
  const SavedTable& table = shard.table;
  const int rank = communicator.rank(), workers = communicator.size();
  const auto add = [&](int64_t begin, const tf::Tensor& ids, const tf::Tensor& rows) -> Status {
    wrote_ = true;
    LOCKSTEP_RETURN_IF_ERROR(AddRows(file, ChangedIds(table.name), changed.total(), begin, ids));
    return AddRows(file, ChangedValues(table.name), changed.total(), begin, rows);
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
      shard.moment->Read({row, row + 1}, to);
      to += table.row_bytes();
    }
    LOCKSTEP_RETURN_IF_ERROR(add(changed.begin(rank) + begin, ids, rows));
    PassCrashPoint("shards: part written");
  }
  return OkStatus();
}

Status SaveJob::ExchangeCounts(Communicator& communicator) {
  std::vector<SharedNumber> numbers = {{"the checkpoint's number", NewLink(), 1, std::numeric_limits<int64_t>::max()}};
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
  link_ = all[0];
  for (int64_t column = 1; column < width; ++column) {
    std::vector<int64_t> of_workers;
    for (int64_t worker = 0; worker < communicator.size(); ++worker) of_workers.push_back(all[worker * width + column]);
    parts_.emplace_back(of_workers);
  }
  return OkStatus();
}

Status SaveJob::WriteTables(Communicator& communicator, tf::BundleWriter* file, const std::string& path) {
  TableFiles files(file, path);
  for (size_t t = 0; t < state_->tables.size(); ++t) {
    SavedState::Dynamic& dynamic = state_->tables[t];
    const auto parts = [&](size_t kind) { return parts_[t * kKinds + kind]; };
    TableShare share{communicator.rank(), state_->changes, parts(0), parts(1), parts(2)};
    share.link = link_;
    share.previous = state_->previous;
    share.part_rows = state_->part_rows;
    share.slots = dynamic.slots;
    share.clock = dynamic.clock;
    LOCKSTEP_RETURN_IF_ERROR(files.Write(dynamic.table.get(), dynamic.name, std::move(share)));
  }
  LOCKSTEP_RETURN_IF_ERROR(files.Finish());
  wrote_ = wrote_ || files.wrote();
  return OkStatus();
}

Status SaveJob::MergeAndCommit(const std::vector<int64_t>& wrote) {
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

Status SaveJob::Add(tf::BundleWriter* file, const std::string& name, const std::string& slice,
                    const tf::Tensor& value) {
  wrote_ = true;
  if (slice.empty()) return FromTensorFlow(file->Add(name, value));
  tf::TensorShape whole, part_shape;
  tf::TensorSlice part(value.dims());
  LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(tf::checkpoint::ParseShapeAndSlice(slice, &whole, &part, &part_shape)));
  if (part_shape != value.shape()) {
    return InvalidArgument(absl::StrCat("tensor '", name, "': its part ", slice, " of a larger one has shape ",
                                        part_shape.DebugString(), ", got ", value.shape().DebugString()));
  }
  return FromTensorFlow(file->AddSlice(name, whole, part, value));
}

std::string SaveJob::FileOf(int rank, int workers) const {
  return absl::StrFormat("%spart-%05d-of-%05d", Aside(), rank, workers);
}

}  // namespace lockstep
