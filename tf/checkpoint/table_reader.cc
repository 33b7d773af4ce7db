#include "tf/checkpoint/table_reader.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/sharding/placement.h"
#include "tensorflow/core/framework/tensor_slice.h"
#include "tf/bridge/convert.h"
#include "tf/checkpoint/bundle_rows.h"
#include "tf/table/table_rows.h"

namespace lockstep {

namespace tf = ::tensorflow;

namespace {

template <typename T>
std::vector<T> Values(const tf::Tensor& tensor) {
  const auto* values = static_cast<const int64_t*>(Data(tensor));
  return {values, values + tensor.NumElements()};
}

std::optional<int64_t> IdOf(int64_t number) {
  return number == TableLayout::kNoCheckpoint ? std::nullopt : std::optional<int64_t>(number);
}

// Keeps only these rows, whose numbers ascend, of `width` values each. An empty vector stays empty.
template <typename T>
void Keep(const std::vector<int64_t>& rows, int64_t width, std::vector<T>* values) {
  if (values->empty()) return;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto to = static_cast<int64_t>(i);
    if (rows[i] != to) std::copy_n(values->begin() + rows[i] * width, width, values->begin() + to * width);
  }
  values->resize(rows.size() * width);
}

}  // namespace

TableReader::TableReader(tf::BundleReader* file, DynamicTableResource* table, const std::string& name, bool changes,
                         int rank, int world_size, Part part)
    : file_(file),
      table_(table),
      name_(name),
      layout_(name, changes),
      changes_(changes),
      rank_(rank),
      world_size_(world_size),
      part_(part) {}

Status TableReader::Restore() {
  LOCKSTEP_RETURN_IF_ERROR(table_->placement().Check(world_size_));
  LOCKSTEP_RETURN_IF_ERROR(CheckShapes());
  LOCKSTEP_RETURN_IF_ERROR(CheckBase());
  LOCKSTEP_RETURN_IF_ERROR(ComparePlacements());
  if (part_ != Part::kRows) LOCKSTEP_RETURN_IF_ERROR(RestoreSlots());
  if (changes_) LOCKSTEP_RETURN_IF_ERROR(RestoreRemoved());
  LOCKSTEP_RETURN_IF_ERROR(RestoreKeys(/*admitted=*/true));
  if (part_ != Part::kAll) return OkStatus();
  const AdmissionOptions& admission = table_->table().options().admission;
  // A table without exact counting ignores candidates and their strings.
  const bool counts = admission.counts() && !admission.bloom();
  if (counts && Has(layout_.Of("keys_filtered"))) LOCKSTEP_RETURN_IF_ERROR(RestoreKeys(/*admitted=*/false));
  LOCKSTEP_RETURN_IF_ERROR(RestoreFilter());
  if (Has(layout_.Of("clock"))) {
    LOCKSTEP_ASSIGN_OR_RETURN(const tf::Tensor clock, Read(layout_.Of("clock"), tf::DT_INT64, {2}));
    // Restoring keys has set the clock to the latest step in which any key was seen.
    const auto numbers = clock.flat<int64_t>();
    table_->set_clock({std::max(numbers(0), table_->clock().step), numbers(1)});
  }
  LOCKSTEP_RETURN_IF_ERROR(RestoreSweep());
  if (Has(layout_.Of("link"))) {
    LOCKSTEP_ASSIGN_OR_RETURN(const tf::Tensor ids, Read(layout_.Of("link"), tf::DT_INT64, {2}));
    table_->set_checkpoint_id(IdOf(ids.flat<int64_t>()(0)));
  }
  return OkStatus();
}

Status TableReader::CheckShapes() {
  if (!Has(layout_.keys()) && !changes_ && Has(TableLayout(name_, true).keys())) {
    return InvalidArgument(
        "it is incremental; restore it with the incremental saver, after the checkpoints that it builds on");
  }
  for (const std::string& name : {layout_.keys(), layout_.values()}) {
    if (!Has(name)) return NotFound(absl::StrCat("it has no tensor '", name, "'"));
  }
  tf::DataType type, rows_type;
  tf::TensorShape keys, rows;
  LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(file_->LookupDtypeAndShape(layout_.keys(), &type, &keys)));
  LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(file_->LookupDtypeAndShape(layout_.values(), &rows_type, &rows)));
  const tf::DataType wanted = table_->strings() != nullptr ? tf::DT_STRING : tf::DT_INT64;
  if (type != wanted || keys.dims() != 1) {
    return InvalidArgument(absl::StrCat("its keys are ", tf::DataTypeString(type), keys.DebugString(), ", the table's ",
                                        tf::DataTypeString(wanted)));
  }
  const tf::TensorShape fits({keys.dim_size(0), table_->dim()});
  if (rows_type != tf::DT_FLOAT || rows != fits) {
    return InvalidArgument(absl::StrCat("its rows are ", tf::DataTypeString(rows_type), rows.DebugString(),
                                        ", the table's float", fits.DebugString()));
  }
  return OkStatus();
}

Status TableReader::CheckBase() {
  if (!changes_) return OkStatus();
  LOCKSTEP_ASSIGN_OR_RETURN(const tf::Tensor ids, Read(layout_.Of("link"), tf::DT_INT64, {2}));
  const std::optional<int64_t> previous = IdOf(ids.flat<int64_t>()(1)), held = table_->checkpoint_id();
  if (previous == held) return OkStatus();
  return FailedPrecondition(absl::StrCat("it builds on checkpoint id ", previous.value_or(TableLayout::kNoCheckpoint),
                                         ", but the table holds id ", held.value_or(TableLayout::kNoCheckpoint),
                                         ": a checkpoint between them is missing, or was replaced"));
}

Status TableReader::ComparePlacements() {
  KeyPlacement written;
  if (Has(layout_.Of("key_owner"))) {
    LOCKSTEP_ASSIGN_OR_RETURN(const tf::Tensor owner, Read(layout_.Of("key_owner"), tf::DT_INT64, {1}));
    LOCKSTEP_ASSIGN_OR_RETURN(written, KeyPlacement::OfNumber(owner.flat<int64_t>()(0)));
  }
  same_placement_ = written == table_->placement();
  return OkStatus();
}

int TableReader::StepOfWriters(int writers) const {
  const bool modulo = same_placement_ && table_->placement().kind != KeyPlacement::Kind::kOneRank;
  return modulo ? std::gcd(writers, world_size_) : 1;
}

Status TableReader::RestoreSlots() {
  if (!Has(layout_.Of("slots"))) return OkStatus();
  LOCKSTEP_ASSIGN_OR_RETURN(const tf::Tensor names, Read(layout_.Of("slots"), tf::DT_STRING));
  LOCKSTEP_ASSIGN_OR_RETURN(const tf::Tensor initials, Read(layout_.Of("slot_initials"), tf::DT_FLOAT, names.shape()));
  for (int64_t s = 0; s < names.NumElements(); ++s) {
    const std::string name(names.flat<tf::tstring>()(s));
    LOCKSTEP_ASSIGN_OR_RETURN(const int number,
                              table_->table().AddSlot(name, initials.flat<float>()(s), /*provisional=*/true));
    slots_.names.push_back(name);
    slots_.numbers.push_back(number);
  }
  return OkStatus();
}

Status TableReader::RestoreRemoved() {
  LOCKSTEP_ASSIGN_OR_RETURN(const tf::Tensor removed, Read(layout_.Of("removed"), tf::DT_INT64));
  table_->RemoveNumbers(Values<int64_t>(removed));
  return OkStatus();
}

Status TableReader::RestoreFilter() {
  const AdmissionOptions& admission = table_->table().options().admission;
  if (!Has(layout_.Of("filter")) || !admission.bloom()) return OkStatus();
  LOCKSTEP_ASSIGN_OR_RETURN(const tf::Tensor made_for, Read(layout_.Of("filter_options"), tf::DT_DOUBLE, {2}));
  const auto sizes = made_for.flat<double>();
  if (sizes(0) != static_cast<double>(*admission.bloom_keys) || sizes(1) != *admission.bloom_false_positives) {
    return InvalidArgument(absl::StrCat("its Bloom filter is for ", sizes(0), " keys and a share of ", sizes(1),
                                        ", the table's for ", *admission.bloom_keys, " and ",
                                        *admission.bloom_false_positives));
  }
  tf::DataType type;
  tf::TensorShape shape;
  LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(file_->LookupDtypeAndShape(layout_.Of("filter"), &type, &shape)));
  if (shape.dims() != 2) {
    return InvalidArgument(absl::StrCat("its Bloom filters are ", shape.DebugString(), ", wanted [workers,bytes]"));
  }
  const int writers = static_cast<int>(shape.dim_size(0));
  const int step = StepOfWriters(writers);
  for (int writer = rank_ % step; writer < writers; writer += step) {
    LOCKSTEP_ASSIGN_OR_RETURN(const tf::Tensor counters,
                              ReadRows(layout_.Of("filter"), tf::DT_UINT8, writer, writer + 1, shape.dim_size(1)));
    const auto* bytes = static_cast<const uint8_t*>(Data(counters));
    LOCKSTEP_RETURN_IF_ERROR(table_->table().RestoreFilter({bytes, static_cast<size_t>(counters.NumElements())}));
  }
  return OkStatus();
}

Status TableReader::RestoreSweep() {
  const std::string name = layout_.Of("sweep");
  if (!Has(name)) return OkStatus();
  tf::DataType type;
  tf::TensorShape shape;
  LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(file_->LookupDtypeAndShape(name, &type, &shape)));
  // The sweep belongs to other workers' keys: this worker's eviction starts at the beginning.
  if (shape.dims() == 2 && (shape.dim_size(0) != world_size_ || !same_placement_)) return OkStatus();
  if (shape != tf::TensorShape({world_size_, 4})) {
    return InvalidArgument(absl::StrCat("its tensor '", name, "' is ", shape.DebugString(), ", wanted [workers,4]"));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const tf::Tensor numbers, ReadRows(name, tf::DT_INT64, rank_, rank_ + 1, 4));
  const auto values = numbers.flat<int64_t>();
  return table_->table().RestoreSweep({.next = static_cast<uint64_t>(values(0)),
                                       .width = static_cast<uint64_t>(values(1)),
                                       .went = values(2),
                                       .ages = values(3) != 0});
}

Status TableReader::RestoreKeys(bool admitted) {
  // String keys are one piece; their values are not.
  const std::string values = admitted ? layout_.values() : layout_.Of("freqs_filtered");
  const std::string keys = admitted ? layout_.keys() : layout_.Of("keys_filtered");
  LOCKSTEP_ASSIGN_OR_RETURN(const auto pieces, Pieces(table_->strings() != nullptr && Has(values) ? values : keys));
  for (const auto& [begin, end] : pieces) {
    LOCKSTEP_ASSIGN_OR_RETURN(const bool concerns, Concerns(admitted, begin, end));
    if (concerns) LOCKSTEP_RETURN_IF_ERROR(RestorePiece(admitted, begin, end));
  }
  read_.clear();
  return OkStatus();
}

Status TableReader::RestorePiece(bool admitted, int64_t begin, int64_t end) {
  const std::string filtered = admitted ? "" : "_filtered";
  LOCKSTEP_ASSIGN_OR_RETURN(tf::Tensor keys,
                            ReadRows(admitted ? layout_.keys() : layout_.Of("keys_filtered"),
                                     table_->strings() != nullptr ? tf::DT_STRING : tf::DT_INT64, begin, end, 1));
  TableRows part;
  if (admitted) {
    LOCKSTEP_ASSIGN_OR_RETURN(const tf::Tensor rows,
                              ReadRows(layout_.values(), tf::DT_FLOAT, begin, end, table_->dim()));
    part.rows = StoredRows(table_->table().options().row_type, rows);
    // Slots of the table that the checkpoint lacks begin with their initial values.
    for (const DynamicTable::Slot& slot : table_->table().slots()) {
      part.slots.emplace_back((end - begin) * table_->dim(), slot.initial);
    }
    for (size_t s = 0; s < slots_.names.size(); ++s) {
      LOCKSTEP_ASSIGN_OR_RETURN(const tf::Tensor slot,
                                ReadRows(layout_.slot(slots_.names[s]), tf::DT_FLOAT, begin, end, table_->dim()));
      const auto* values = static_cast<const float*>(Data(slot));
      part.slots[slots_.numbers[s]].assign(values, values + slot.NumElements());
    }
  }
  const auto read_counts = [&]<typename Count>(const char* what, std::vector<Count>* counts) -> Status {
    const std::string name = absl::StrCat(layout_.Of(what), filtered);
    if (!Has(name)) return OkStatus();
    LOCKSTEP_ASSIGN_OR_RETURN(const tf::Tensor values, ReadRows(name, tf::DT_INT64, begin, end, 1));
    *counts = Values<Count>(values);
    return OkStatus();
  };
  if (part_ == Part::kAll) {
    LOCKSTEP_RETURN_IF_ERROR(read_counts("freqs", &part.frequencies));
    LOCKSTEP_RETURN_IF_ERROR(read_counts("versions", &part.versions));
    LOCKSTEP_RETURN_IF_ERROR(read_counts("seconds", &part.seconds));
  }
  RestoreOptions options;
  options.admitted = admitted;
  options.now = table_->now();
  if (world_size_ > 1 && table_->strings() != nullptr) {
    KeepOwnStrings(&keys, &part);
  } else if (world_size_ > 1) {
    options.owns = [this](int64_t key) { return table_->placement().Owner(key, world_size_) == rank_; };
  }
  return table_->Restore(keys, std::move(part), options);
}

void TableReader::KeepOwnStrings(tf::Tensor* keys, TableRows* part) const {
  const auto all = keys->flat<tf::tstring>();
  std::vector<int64_t> own;
  for (int64_t i = 0; i < all.size(); ++i) {
    const std::string_view string(all(i).data(), all(i).size());
    if (table_->placement().OwnerOfString(string, world_size_) == rank_) own.push_back(i);
  }
  tf::Tensor kept(tf::DT_STRING, tf::TensorShape({static_cast<int64_t>(own.size())}));
  for (size_t i = 0; i < own.size(); ++i) kept.flat<tf::tstring>()(i) = all(own[i]);
  *keys = kept;
  const DynamicTableOptions& options = table_->table().options();
  Keep(own, options.dim * static_cast<int64_t>(DTypeSize(options.row_type)), &part->rows);
  for (std::vector<float>& slot : part->slots) Keep(own, options.dim, &slot);
  Keep(own, 1, &part->frequencies);
  Keep(own, 1, &part->versions);
  Keep(own, 1, &part->seconds);
}

Result<bool> TableReader::Concerns(bool admitted, int64_t begin, int64_t end) {
  const KeyPlacement& placement = table_->placement();
  if (placement.kind == KeyPlacement::Kind::kOneRank && placement.rank != rank_) return false;
  const std::string name = layout_.Of(admitted ? "parts" : "parts_filtered");
  if (!Has(name)) return true;
  LOCKSTEP_ASSIGN_OR_RETURN(const tf::Tensor parts, Read(name, tf::DT_INT64));
  const auto offsets = parts.flat<int64_t>();
  const int writers = static_cast<int>(offsets.size()) - 1;
  // Rows without a writer would be left out without any message.
  if (writers < 1 || offsets(0) != 0 || offsets(writers) < end ||
      !std::is_sorted(offsets.data(), offsets.data() + offsets.size())) {
    return DataLoss(absl::StrCat("tensor '", name, "' does not record which worker wrote each of the ", end, " rows"));
  }
  const int step = StepOfWriters(writers);
  for (int writer = rank_ % step; writer < writers; writer += step) {
    if (offsets(writer) < end && begin < offsets(writer + 1)) return true;
  }
  return false;
}

Result<tf::Tensor> TableReader::Read(const std::string& name, tf::DataType dtype) {
  const auto found = read_.find(name);
  if (found != read_.end()) return found->second;
  tf::DataType type;
  tf::TensorShape shape;
  if (!Has(name)) return NotFound(absl::StrCat("it has no tensor '", name, "'"));
  LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(file_->LookupDtypeAndShape(name, &type, &shape)));
  if (type != dtype) {
    return InvalidArgument(
        absl::StrCat("tensor '", name, "' is ", tf::DataTypeString(type), ", wanted ", tf::DataTypeString(dtype)));
  }
  tf::Tensor tensor(type, shape);
  LOCKSTEP_RETURN_IF_ERROR(CheckAllocated(tensor));
  LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(file_->Lookup(name, &tensor)));
  return read_.emplace(name, tensor).first->second;
}

Result<tf::Tensor> TableReader::Read(const std::string& name, tf::DataType dtype, const tf::TensorShape& shape) {
  LOCKSTEP_ASSIGN_OR_RETURN(const tf::Tensor tensor, Read(name, dtype));
  if (tensor.shape() == shape) return tensor;
  return InvalidArgument(
      absl::StrCat("tensor '", name, "' is ", tensor.shape().DebugString(), ", wanted ", shape.DebugString()));
}

Result<tf::Tensor> TableReader::ReadRows(const std::string& name, tf::DataType dtype, int64_t begin, int64_t end,
                                         int64_t width) {
  if (!Has(name)) return NotFound(absl::StrCat("it has no tensor '", name, "'"));
  tf::DataType type;
  tf::TensorShape shape;
  std::vector<tf::TensorSlice> slices;
  LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(file_->LookupDtypeAndShape(name, &type, &shape)));
  if (type != dtype || shape.dims() < 1 || shape.dim_size(0) < end ||
      shape.num_elements() != shape.dim_size(0) * width) {
    return InvalidArgument(absl::StrCat("tensor '", name, "' is ", tf::DataTypeString(type), shape.DebugString(),
                                        ", wanted ", tf::DataTypeString(dtype), " with ", end, " rows or more of ",
                                        width));
  }
  LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(file_->LookupTensorSlices(name, &slices)));
  if (slices.empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(const tf::Tensor whole, Read(name, dtype));
    return whole.Slice(begin, end);
  }
  tf::TensorSlice slice(shape.dims());
  slice.set_start(0, begin);
  slice.set_length(0, end - begin);
  shape.set_dim(0, end - begin);
  tf::Tensor rows(type, shape);
  LOCKSTEP_RETURN_IF_ERROR(CheckAllocated(rows));
  LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(file_->LookupSlice(name, slice, &rows)));
  return rows;
}

Result<std::map<int64_t, int64_t>> TableReader::Pieces(const std::string& name) {
  tf::DataType type;
  tf::TensorShape shape;
  std::vector<tf::TensorSlice> slices;
  LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(file_->LookupDtypeAndShape(name, &type, &shape)));
  LOCKSTEP_RETURN_IF_ERROR(FromTensorFlow(file_->LookupTensorSlices(name, &slices)));
  std::map<int64_t, int64_t> pieces;
  for (const tf::TensorSlice& slice : slices) {
    const bool whole = slice.IsFullAt(0);
    pieces[whole ? 0 : slice.start(0)] = whole ? shape.dim_size(0) : slice.start(0) + slice.length(0);
  }
  if (slices.empty()) pieces[0] = shape.dim_size(0);
  int64_t next = 0;
  for (const auto& [begin, end] : pieces) {
    if (begin != next || end < begin) break;
    next = end;
  }
  if (next != shape.dim_size(0)) {
    return DataLoss(
        absl::StrCat("tensor '", name, "' of ", shape.dim_size(0), " rows has none from row ", next, " on"));
  }
  return pieces;
}

}  // namespace lockstep
