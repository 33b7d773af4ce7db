#include "tf/checkpoint/save_job.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/crash_point.h"
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
  if (!state_->tables.empty()) LOCKSTEP_RETURN_IF_ERROR(ExchangeCounts(communicator));
  const std::string path = FileOf(communicator.rank(), communicator.size());
  tf::BundleWriter file(tf::Env::Default(), path);
  LOCKSTEP_RETURN_IF_ERROR(Meet(communicator, name_, FromTensorFlow(file.status())));
  LOCKSTEP_RETURN_IF_ERROR(Meet(communicator, name_, WriteOwn(&file)));
  // The rows of dynamic tables that change meanwhile are in memory until they are written, so these come first.
  LOCKSTEP_RETURN_IF_ERROR(Meet(communicator, name_, WriteTables(communicator, &file, path)));
  for (const SavedState::Shard& shard : state_->shards) {
    LOCKSTEP_RETURN_IF_ERROR(WriteShard(communicator, &file, shard));
    shard.moment->End();  // changes need no copies from here on
  }
  LOCKSTEP_RETURN_IF_ERROR(Meet(communicator, name_, FromTensorFlow(file.Finish())));
  PassCrashPoint("save: file written");

  std::vector<uint8_t> wrote(communicator.size());
  const uint8_t mine = wrote_ ? 1 : 0;
  LOCKSTEP_RETURN_IF_ERROR(communicator.AllGatherV(
      name_, Item{DType::kUInt8, 1}, 1, &mine,
      [&](std::span<const int64_t>) -> Result<void*> { return static_cast<void*>(wrote.data()); }));
  const Status committed = communicator.rank() == 0 ? MergeAndCommit(wrote) : OkStatus();
  LOCKSTEP_RETURN_IF_ERROR(Meet(communicator, name_, committed));
  return Meet(communicator, name_, EndSnapshots());
}

Status SaveJob::EndSnapshots() {
  for (SavedState::Dynamic& dynamic : state_->tables) {
    dynamic.snapshot = nullptr;
    LOCKSTEP_RETURN_IF_ERROR(dynamic.table->EndSnapshot(link_));
  }
  return OkStatus();
}

Status SaveJob::WriteOwn(tf::BundleWriter* file) {
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

Status SaveJob::WriteShard(Communicator& communicator, tf::BundleWriter* file, const SavedState::Shard& shard) {
  const SavedTable& table = shard.table;
  const auto read = [&](RowRange local, char* data) { shard.moment->Read(local, data); };
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

Status SaveJob::ExchangeCounts(Communicator& communicator) {
  std::vector<int64_t> mine = {NewLink()};
  for (const SavedState::Dynamic& dynamic : state_->tables) {
    mine.insert(mine.end(), dynamic.counts.begin(), dynamic.counts.end());
  }
  const int64_t width = static_cast<int64_t>(mine.size());
  std::vector<int64_t> all(width * communicator.size());
  LOCKSTEP_RETURN_IF_ERROR(communicator.AllGatherV(
      name_, Item{DType::kInt64, width}, 1, mine.data(),
      [&](std::span<const int64_t>) -> Result<void*> { return static_cast<void*>(all.data()); }));
  link_ = all[0];
  for (int64_t worker = 0; worker < communicator.size(); ++worker) {
    counts_.insert(counts_.end(), all.begin() + worker * width + 1, all.begin() + (worker + 1) * width);
  }
  return OkStatus();
}

Status SaveJob::WriteTables(Communicator& communicator, tf::BundleWriter* file, const std::string& path) {
  TableFiles files(file, path);
  const size_t tables = state_->tables.size(), kinds = std::tuple_size_v<TableCounts>;
  for (size_t t = 0; t < tables; ++t) {
    SavedState::Dynamic& dynamic = state_->tables[t];
    const auto parts = [&](size_t kind) {
      std::vector<int64_t> of_workers;
      for (int w = 0; w < communicator.size(); ++w) of_workers.push_back(counts_[(w * tables + t) * kinds + kind]);
      return TableParts(of_workers);
    };
    TableShare share{communicator.rank(), state_->changes, parts(0), parts(1), parts(2)};
    share.link = link_;
    share.previous = dynamic.previous;
    share.part_rows = state_->part_rows;
    share.slots = dynamic.slots;
    share.clock = dynamic.clock;
    LOCKSTEP_RETURN_IF_ERROR(files.Write(dynamic.table.get(), dynamic.name, std::move(share)));
  }
  LOCKSTEP_RETURN_IF_ERROR(files.Finish());
  wrote_ = wrote_ || files.wrote();
  return OkStatus();
}

Status SaveJob::MergeAndCommit(const std::vector<uint8_t>& wrote) {
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
