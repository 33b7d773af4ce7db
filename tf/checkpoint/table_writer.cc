#include "tf/checkpoint/table_writer.h"

#include <algorithm>
#include <memory>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/crash_point.h"
#include "tensorflow/core/framework/tensor_util.h"
#include "tensorflow/core/platform/env.h"
#include "tf/bridge/convert.h"
#include "tf/checkpoint/bundle_rows.h"
#include "tf/table/table_rows.h"

namespace lockstep {

namespace tf = ::tensorflow;

namespace {

// The bytes of a table that are in memory while it is written.
constexpr int64_t kPartBytes = 16 << 20;

// The suffix of a worker's file of string keys, after the name of its file.
constexpr char kStrings[] = "-strings";

template <typename T, typename Values>
tf::Tensor Vector(const Values& values) {
  tf::Tensor tensor(tf::DataTypeToEnum<T>::value, tf::TensorShape({static_cast<int64_t>(std::size(values))}));
  std::copy(std::begin(values), std::end(values), tensor.flat<T>().data());
  return tensor;
}

absl::Status Join(tf::Env* env, const std::vector<std::string>& prefixes, const std::string& joined) {
  std::vector<std::unique_ptr<tf::BundleReader>> files;
  for (const std::string& prefix : prefixes) {
    files.push_back(std::make_unique<tf::BundleReader>(env, absl::StrCat(prefix, kStrings)));
    TF_RETURN_IF_ERROR(files.back()->status());
  }
  if (files.empty()) return absl::InvalidArgumentError("no files to join");
  std::vector<std::string> names;
  files[0]->Seek("");
  // The first entry is the header of the file itself.
  for (files[0]->Next(); files[0]->Valid(); files[0]->Next()) names.emplace_back(files[0]->key());
  tf::BundleWriter writer(env, joined);
  TF_RETURN_IF_ERROR(writer.status());
  for (const std::string& name : names) {
    std::vector<tf::Tensor> parts;
    for (const auto& file : files) {
      tf::DataType type;
      tf::TensorShape shape;
      TF_RETURN_IF_ERROR(file->LookupDtypeAndShape(name, &type, &shape));
      TF_RETURN_IF_ERROR(file->Lookup(name, &parts.emplace_back(type, shape)));
    }
    tf::Tensor whole;
    TF_RETURN_IF_ERROR(tf::tensor::Concat(parts, &whole));
    TF_RETURN_IF_ERROR(writer.Add(name, whole));
  }
  return writer.Finish();
}

}  // namespace

TableCounts CountsOf(const Snapshot& snapshot) {
  return {snapshot.admitted_count(), snapshot.candidate_count(), static_cast<int64_t>(snapshot.removed().size())};
}

int64_t NewCheckpointId() {
  std::random_device random;
  const uint64_t bits = (static_cast<uint64_t>(random()) << 32 | random()) >> 1;
  return static_cast<int64_t>(bits | 1);
}

Status TableFiles::Write(DynamicTableResource* table, const std::string& name, TableShare share) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::shared_ptr<Snapshot> snapshot, table->snapshot());
  const bool apart = table->strings() != nullptr && share.admitted.offsets().size() > 2;  // of several workers
  if (apart && !strings_) {
    strings_.emplace(tf::Env::Default(), absl::StrCat(prefix_, kStrings));
    LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(strings_->status()));
  }
  TableWriter writer(file_, apart ? &*strings_ : file_, table, name, std::move(share));
  LOCKSTEP_RETURN_IF_ERROR(writer.Write(snapshot.get()));
  wrote_ = wrote_ || writer.wrote();
  return OkStatus();
}

Status TableFiles::Finish() { return strings_ ? FromTensorFlow(strings_->Finish()) : OkStatus(); }

Status JoinStrings(tf::Env* env, const std::vector<std::string>& prefixes, const std::string& joined) {
  return FromTensorFlow(Join(env, prefixes, joined));
}

TableWriter::TableWriter(tf::BundleWriter* file, tf::BundleWriter* strings, DynamicTableResource* table,
                         const std::string& name, TableShare share)
    : file_(file), strings_file_(strings), table_(table), layout_(name, share.changes), share_(std::move(share)) {}

Status TableWriter::Write(Snapshot* snapshot) {
  slots_ = snapshot->slots();
  const size_t workers = share_.admitted.offsets().size() - 1;
  if (share_.rank == 0) LOCKSTEP_RETURN_IF_ERROR(WriteOnce(*snapshot));
  if (share_.changes) {
    const auto removed = Vector<int64_t>(snapshot->removed());
    LOCKSTEP_RETURN_IF_ERROR(
        AddSlice(layout_.Of("removed"), share_.removed, share_.removed.begin(share_.rank), removed));
  }
  if (!snapshot->filter().empty()) {
    tf::Tensor counters(tf::DT_UINT8, tf::TensorShape({1, static_cast<int64_t>(snapshot->filter().size())}));
    std::copy(snapshot->filter().begin(), snapshot->filter().end(), counters.flat<uint8_t>().data());
    const TableParts one_each(std::vector<int64_t>(workers, 1));
    LOCKSTEP_RETURN_IF_ERROR(AddSlice(layout_.Of("filter"), one_each, share_.rank, counters));
  }
  if (table_->table().options().eviction.any()) LOCKSTEP_RETURN_IF_ERROR(WriteSweep(snapshot->sweep()));
  const int64_t row_bytes = 64 + 4 * table_->dim() * (1 + static_cast<int64_t>(slots_.size()));
  const int64_t part_rows = share_.part_rows.value_or(
      std::max(kPartBytes / row_bytes + 1, share_.admitted.count(share_.rank) / kMostSlices + 1));
  SnapshotPart part;
  while (snapshot->Next(part_rows, &part)) {
    if (part.rows.size() == 0) continue;
    LOCKSTEP_RETURN_IF_ERROR(WriteRows(part));
    PassCrashPoint("tables: part written");
  }
  table_->SnapshotRead();
  LOCKSTEP_RETURN_IF_ERROR(snapshot->status());
  if (written_[0] != share_.admitted.count(share_.rank) || written_[1] != share_.candidates.count(share_.rank)) {
    return FailedPrecondition(absl::StrCat("table '", table_->name(), "': ", written_[0], " keys and ", written_[1],
                                           " candidates to save, wanted ", share_.admitted.count(share_.rank), " and ",
                                           share_.candidates.count(share_.rank), ", as counted when the save began"));
  }
  if (table_->strings() != nullptr) {
    const auto add = [this](const std::string& name, const std::vector<std::string>& strings) {
      wrote_ |= strings_file_ == file_;
      return FromTensorFlow(strings_file_->Add(name, Vector<tf::tstring>(strings)));
    };
    LOCKSTEP_RETURN_IF_ERROR(add(layout_.keys(), strings_[0]));
    if (table_->table().options().admission.counts() && !table_->table().options().admission.bloom()) {
      LOCKSTEP_RETURN_IF_ERROR(add(layout_.Of("keys_filtered"), strings_[1]));
    }
  }
  return OkStatus();
}

Status TableWriter::WriteSweep(const EvictionSweep& sweep) {
  tf::Tensor numbers(tf::DT_INT64, tf::TensorShape({1, 4}));
  auto values = numbers.flat<int64_t>();
  values(0) = static_cast<int64_t>(sweep.next);
  values(1) = static_cast<int64_t>(sweep.width);
  values(2) = sweep.went;
  values(3) = sweep.ages ? 1 : 0;
  const TableParts one_each(std::vector<int64_t>(share_.admitted.offsets().size() - 1, 1));
  return AddSlice(layout_.Of("sweep"), one_each, share_.rank, numbers);
}

Status TableWriter::WriteOnce(const Snapshot& snapshot) {
  std::vector<std::string> names;
  std::vector<float> initials;
  for (const DynamicTable::Slot& slot : slots_) {
    if (slot.dropped) continue;
    names.push_back(slot.name);
    initials.push_back(slot.initial);
  }
  const std::vector<int64_t> clock = {share_.clock.step, share_.clock.changes};
  const std::vector<int64_t> ids = {share_.checkpoint_id, share_.previous.value_or(TableLayout::kNoCheckpoint)};
  LOCKSTEP_RETURN_IF_ERROR(Add(layout_.Of("slots"), Vector<tf::tstring>(names)));
  LOCKSTEP_RETURN_IF_ERROR(Add(layout_.Of("slot_initials"), Vector<float>(initials)));
  LOCKSTEP_RETURN_IF_ERROR(Add(layout_.Of("clock"), Vector<int64_t>(clock)));
  LOCKSTEP_RETURN_IF_ERROR(Add(layout_.Of("link"), Vector<int64_t>(ids)));
  if (table_->placement() != KeyPlacement()) {
    const std::vector<int64_t> owner = {table_->placement().number()};
    LOCKSTEP_RETURN_IF_ERROR(Add(layout_.Of("key_owner"), Vector<int64_t>(owner)));
  }
  LOCKSTEP_RETURN_IF_ERROR(Add(layout_.Of("parts"), Vector<int64_t>(share_.admitted.offsets())));
  LOCKSTEP_RETURN_IF_ERROR(Add(layout_.Of("parts_filtered"), Vector<int64_t>(share_.candidates.offsets())));
  if (!snapshot.filter().empty()) {
    const AdmissionOptions& admission = table_->table().options().admission;
    const std::vector<double> options = {static_cast<double>(*admission.bloom_keys), *admission.bloom_false_positives};
    LOCKSTEP_RETURN_IF_ERROR(Add(layout_.Of("filter_options"), Vector<double>(options)));
  }
  return WriteEmpty();
}

// Writes tensors without rows. They have no slices, so worker 0 writes them whole.
Status TableWriter::WriteEmpty() {
  const DynamicTableOptions& options = table_->table().options();
  const tf::Tensor none(tf::DT_INT64, tf::TensorShape({0}));
  const bool strings = table_->strings() != nullptr;
  if (share_.changes && share_.removed.total() == 0) LOCKSTEP_RETURN_IF_ERROR(Add(layout_.Of("removed"), none));
  const EvictionOptions& eviction = options.eviction;
  const auto add_counts = [&](const std::string& end, bool frequencies) -> Status {
    const std::pair<const char*, bool> counts[] = {{"freqs", frequencies},
                                                   {"versions", options.record_version || eviction.needs_version()},
                                                   {"seconds", options.keeps_seconds()}};
    for (const auto& [what, recorded] : counts) {
      if (recorded) LOCKSTEP_RETURN_IF_ERROR(Add(absl::StrCat(layout_.Of(what), end), none));
    }
    return OkStatus();
  };
  if (share_.admitted.total() == 0) {
    const tf::Tensor no_rows(tf::DT_FLOAT, tf::TensorShape({0, table_->dim()}));
    if (!strings) LOCKSTEP_RETURN_IF_ERROR(Add(layout_.keys(), none));
    LOCKSTEP_RETURN_IF_ERROR(Add(layout_.values(), no_rows));
    for (const DynamicTable::Slot& slot : slots_) {
      if (!slot.dropped) LOCKSTEP_RETURN_IF_ERROR(Add(layout_.slot(slot.name), no_rows));
    }
    LOCKSTEP_RETURN_IF_ERROR(add_counts("", options.record_frequency || eviction.needs_frequency()));
  }
  if (options.admission.counts() && !options.admission.bloom() && share_.candidates.total() == 0) {
    if (!strings) LOCKSTEP_RETURN_IF_ERROR(Add(layout_.Of("keys_filtered"), none));
    LOCKSTEP_RETURN_IF_ERROR(add_counts("_filtered", true));
  }
  return OkStatus();
}

Status TableWriter::WriteRows(const SnapshotPart& part) {
  const int kind = part.admitted ? 0 : 1;
  const TableParts& parts = part.admitted ? share_.admitted : share_.candidates;
  const TableRows& rows = part.rows;
  const int64_t begin = parts.begin(share_.rank) + written_[kind];
  written_[kind] += rows.size();
  if (begin + rows.size() > parts.begin(share_.rank) + parts.count(share_.rank)) return OkStatus();  // Write reports it
  LOCKSTEP_RETURN_IF_ERROR(WriteKeys(rows, part.admitted, begin));
  LOCKSTEP_RETURN_IF_ERROR(WriteCounts(rows, part.admitted ? "" : "_filtered", parts, begin));
  if (!part.admitted) return OkStatus();
  tf::Tensor values(tf::DT_FLOAT, tf::TensorShape({rows.size(), table_->dim()}));
  auto* out = static_cast<float*>(Data(values));
  for (int64_t i = 0; i < rows.size(); ++i) ReadRow(table_->table(), rows, i, out + i * table_->dim());
  LOCKSTEP_RETURN_IF_ERROR(AddSlice(layout_.values(), parts, begin, values));
  // A slot that was added after the snapshot began is not part of it.
  for (size_t s = 0; s < slots_.size(); ++s) {
    if (slots_[s].dropped) continue;
    std::copy(rows.slots[s].begin(), rows.slots[s].end(), out);
    LOCKSTEP_RETURN_IF_ERROR(AddSlice(layout_.slot(slots_[s].name), parts, begin, values));
  }
  return OkStatus();
}

Status TableWriter::WriteCounts(const TableRows& rows, const std::string& end, const TableParts& parts, int64_t begin) {
  const auto add = [&](const std::string& what, const auto& counts) {
    return counts.empty() ? OkStatus()
                          : AddSlice(absl::StrCat(layout_.Of(what), end), parts, begin, Vector<int64_t>(counts));
  };
  LOCKSTEP_RETURN_IF_ERROR(add("freqs", rows.frequencies));
  LOCKSTEP_RETURN_IF_ERROR(add("versions", rows.versions));
  return add("seconds", rows.seconds);
}

Status TableWriter::WriteKeys(const TableRows& rows, bool admitted, int64_t begin) {
  if (table_->strings() == nullptr) {
    const TableParts& parts = admitted ? share_.admitted : share_.candidates;
    return AddSlice(admitted ? layout_.keys() : layout_.Of("keys_filtered"), parts, begin, Vector<int64_t>(rows.keys));
  }
  for (const int64_t key : rows.keys) {
    std::string& bytes = strings_[admitted ? 0 : 1].emplace_back();
    if (!table_->strings()->BytesInSnapshot(key, &bytes)) {
      return Internal(absl::StrCat("table '", table_->name(), "': key ", key, " has no string"));
    }
  }
  return OkStatus();
}

Status TableWriter::Add(const std::string& name, const tf::Tensor& tensor) {
  wrote_ = true;
  return FromTensorFlow(file_->Add(name, tensor));
}

Status TableWriter::AddSlice(const std::string& name, const TableParts& parts, int64_t begin, const tf::Tensor& rows) {
  if (rows.dim_size(0) == 0) return OkStatus();
  wrote_ = true;
  return AddRows(file_, name, parts.total(), begin, rows);
}

}  // namespace lockstep
