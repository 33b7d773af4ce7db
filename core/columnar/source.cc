// Reads the footers of a set of files before the first row is read, and chooses the size of the pieces in which each
// file is decoded. There are two opposite limits: a piece stays in memory until its last batch is gone, and each piece
// costs some calls through Arrow for each column. Sizes are counted in memory, so files with wide rows get short
// pieces.
#include "core/columnar/source.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <system_error>
#include <thread>

#include "core/base/cores.h"
#include "core/columnar/column/fingerprint.h"
#include "core/columnar/files/files.h"
#include "core/columnar/paths.h"

namespace lockstep::columnar {
namespace {

// Small enough that a few pieces in flight do not matter, and large enough that the cost of starting one does not.
// Narrow rows would make pieces of many more rows than any batch needs, hence the second limit.
constexpr int64_t kPieceBytes = 32 << 20;
constexpr int64_t kMostPieceRows = 65536;

// From this size on, a batch is worth a piece of its own.
constexpr int64_t kLargeBatchRows = 1024;

// Returns the rows of a piece. Pieces are whole batches, so that a batch seldom lies in two pieces, which would cost a
// copy. The values of lists begin anywhere in a piece except at its start, so they are mostly not aligned, which costs
// a copy as well. So with lists a piece is one batch, unless batches are so small that copies are cheaper than pieces.
int64_t PieceRows(const SourceOptions& options, int64_t best_rows) {
  const bool ragged = std::any_of(options.fields.begin(), options.fields.end(),
                                  [](const Field& field) { return field.type.ragged_rank > 0; });
  const int64_t batch_size = options.plan.batch_size;
  if (ragged && batch_size >= kLargeBatchRows) return batch_size;
  return std::max<int64_t>(1, best_rows / batch_size) * batch_size;
}

std::vector<std::string> ValueTexts(const ParquetFile& file, const std::vector<Field>& fields) {
  std::vector<std::string> texts;
  for (const Field& field : fields) {
    const FileColumn* column = file.Find(field.name);
    texts.push_back(column == nullptr ? "" : column->ValueText());
  }
  return texts;
}

// Reads a file's footer and compares it with the fields. A piece has at least 1024 rows, even if rows are very wide.
// Two pieces of the best size are decoded ahead (Decoder).
Result<Source::File> ReadFooter(const std::string& path, const SourceOptions& options) {
  const Result<std::shared_ptr<ParquetFile>> opened = OpenParquetFile(path);
  if (options.skip_corrupted && opened.status().code() == StatusCode::kDataLoss) {
    return Source::File{path, {}, {}, 1, 1, std::nullopt, opened.status(), {}};
  }
  LOCKSTEP_RETURN_IF_ERROR(opened.status());
  const std::shared_ptr<ParquetFile>& file = *opened;
  LOCKSTEP_RETURN_IF_ERROR(file->Check(options.fields));
  // The file will not be opened again.
  const std::vector<int64_t>& rows = file->group_rows();
  const bool has_rows = std::any_of(rows.begin(), rows.end(), [](int64_t count) { return count > 0; });
  if (!has_rows) LOCKSTEP_RETURN_IF_ERROR(options.checksums->Verify(path));
  LOCKSTEP_ASSIGN_OR_RETURN(const int64_t row_bytes, file->RowBytes(options.fields));
  const int64_t best_rows = std::clamp<int64_t>(kPieceBytes / row_bytes, 1024, kMostPieceRows);
  std::vector<int64_t> planned_rows = file->group_rows();
  if (!options.filter.empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<bool> may_pass,
                              file->GroupsThatMayPass(options.filter, options.fields));
    for (size_t group = 0; group < planned_rows.size(); ++group) planned_rows[group] *= may_pass[group];
  }
  return Source::File{path,
                      file->group_rows(),
                      std::move(planned_rows),
                      options.piece_rows.value_or(PieceRows(options, best_rows)),
                      2 * best_rows,
                      file->contents(),
                      OkStatus(),
                      ValueTexts(*file, options.fields)};
}

// Returns INVALID_ARGUMENT if the files have a column in different units, such as microseconds and nanoseconds. As no
// value is converted, its numbers would mean different things from file to file.
Status CheckUnits(const std::vector<Source::File>& files, const std::vector<Field>& fields) {
  for (size_t i = 0; i < fields.size(); ++i) {
    const Source::File* first = nullptr;
    for (const Source::File& file : files) {
      if (file.value_texts.empty() || file.value_texts[i].empty()) continue;
      if (first == nullptr) first = &file;
      if (file.value_texts[i] == first->value_texts[i]) continue;
      return InvalidArgument(ColumnText(file.path, fields[i].name) + " is " + file.value_texts[i] + ", wanted " +
                             first->value_texts[i] + " as in " + FileText(first->path) +
                             ": values are not converted; write both with one type, or read two datasets");
    }
  }
  return OkStatus();
}

}  // namespace

Status SourceOptions::Validate() const {
  LOCKSTEP_RETURN_IF_ERROR(plan.Validate());
  if (fields.empty()) return InvalidArgument("no fields are given");
  std::set<std::string> names;
  for (const Field& field : fields) {
    const std::string who = "field '" + field.name + "'";
    if (!names.insert(field.name).second) return InvalidArgument(who + " is given twice");
    if (field.type.value == ValueType::kNull)
      return InvalidArgument(who + ": its type is null, wanted one with values");
    if (field.type.ragged_rank < 0) {
      return InvalidArgument(who + ": ragged_rank is " + std::to_string(field.type.ragged_rank) + ", wanted 0 or more");
    }
    for (int64_t dimension : field.type.shape) {
      if (dimension >= 1) continue;
      return InvalidArgument(who + ": shape has a dimension " + std::to_string(dimension) + ", wanted 1 or more");
    }
    // Strings have size 0: their default may have any length.
    const int64_t size = ValueTypeSize(field.type.value);
    if (field.default_value && size > 0 && static_cast<int64_t>(field.default_value->size()) != size) {
      return InvalidArgument(who + ": default_value has " + std::to_string(field.default_value->size()) +
                             " bytes, wanted " + std::to_string(size));
    }
  }
  if (!filter.empty() && plan.partition_by == PartitionBy::kBatches) {
    return InvalidArgument(
        "partition_by is 'batches' and filters are given, wanted 'rows' or 'row_groups' with filters: steps of batches "
        "are counted before rows are filtered");
  }
  if (skip_corrupted && plan.partition_by == PartitionBy::kBatches) {
    return InvalidArgument(
        "skip_corrupted_data is given and partition_by is 'batches', wanted 'rows' or 'row_groups': steps of batches "
        "are "
        "counted before rows are left out");
  }
  if (threads.value_or(1) < 1) return InvalidArgument("threads is " + std::to_string(*threads) + ", wanted 1 or more");
  if (piece_rows.value_or(1) < 1) {
    return InvalidArgument("piece_rows is " + std::to_string(*piece_rows) + ", wanted 1 or more");
  }
  return OkStatus();
}

Result<std::shared_ptr<const Source>> Source::Make(SourceOptions options) {
  LOCKSTEP_RETURN_IF_ERROR(options.Validate());
  LOCKSTEP_ASSIGN_OR_RETURN(std::vector<std::string> paths, ExpandPaths(options.paths));
  LOCKSTEP_RETURN_IF_ERROR(options.checksums->CheckHas(paths));
  std::shared_ptr<Source> source(new Source);
  source->options_ = std::move(options);

  // Each thread takes the next file. After a failure no further file is begun, but every file that was taken is
  // completed, so all files before a failed one have a result. `next` only assigns numbers and `failed` only saves
  // work, so no other memory depends on their order. Joining the threads hands over the results. This thread works too,
  // by itself if no thread can be started.
  std::vector<std::optional<Result<File>>> results(paths.size());
  std::atomic<size_t> next = 0;
  std::atomic<bool> failed = false;
  const auto work = [&] {
    while (!failed) {
      const size_t i = next++;
      if (i >= paths.size()) return;
      results[i].emplace(ReadFooter(paths[i], source->options_));
      if (!results[i]->ok()) failed = true;
    }
  };
  {
    std::vector<std::jthread> helpers;
    const size_t wanted = std::min<size_t>(source->threads(), paths.size());
    try {
      while (helpers.size() + 1 < wanted) helpers.emplace_back(work);
    } catch (const std::system_error&) {  // fewer threads suffice
    }
    work();
  }
  std::vector<std::vector<int64_t>> group_rows;
  for (auto& result : results) {
    // A file that was not begun comes after one that failed.
    if (!result->ok()) return result->status();
    source->files_.push_back(**std::move(result));
    group_rows.push_back(source->files_.back().planned_rows);
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckUnits(source->files_, source->options_.fields));
  LOCKSTEP_ASSIGN_OR_RETURN(source->plan_, RowPlan::Make(group_rows, source->options_.plan));
  return std::shared_ptr<const Source>(std::move(source));
}

int64_t Source::threads() const { return options_.threads ? *options_.threads : AvailableCores(); }

std::optional<int64_t> Source::batches() const {
  if (!options_.filter.empty() || options_.skip_corrupted) return std::nullopt;
  const int64_t size = options_.plan.batch_size, rows = plan_.total_rows();
  return rows / size + (!options_.drop_remainder && rows % size != 0 ? 1 : 0);
}

SourceIdentity Source::identity() const {
  SourceIdentity identity;
  for (const File& file : files_) {
    Fingerprint contents;
    // Saved positions have 0 for an unreadable file.
    contents.Add(file.contents.value_or(0));
    for (int64_t rows : file.group_rows) contents.Add(rows);
    identity.paths.push_back(file.path);
    identity.contents.push_back(contents.value());
  }
  Fingerprint order;
  const PlanOptions& plan = options_.plan;
  // The number of threads and the size of pieces do not change which rows are read.
  for (int64_t number : {static_cast<int64_t>(plan.partition_by), plan.partition_count, plan.partition_index,
                         plan.batch_size, plan.parallel_files, plan.sequential_batches}) {
    order.Add(number);
  }
  // Positions count rows of the row groups that are read. Without a filter nothing is added.
  for (const auto& conjunction : options_.filter) {
    order.Add("or");
    for (const FilterTerm& term : conjunction) {
      order.Add(term.column);
      order.Add(static_cast<int64_t>(term.op));
      for (const FilterValue& value : term.values) {
        order.Add(static_cast<int64_t>(value.kind));
        order.Add(value.text);
      }
    }
  }
  identity.order = order.value();
  return identity;
}

Status SourceIdentity::Check(const SourceIdentity& saved) const {
  const auto other = [](const std::string& what) {
    return FailedPrecondition("the saved position belongs to other data: " + what);
  };
  const auto count = [](const std::vector<std::string>& files) {
    return std::to_string(files.size()) + (files.size() == 1 ? " file" : " files");
  };
  if (saved.paths != paths) {
    const std::string counts = " (" + count(saved.paths) + " then, " + count(paths) + " now)";
    const std::set<std::string> then(saved.paths.begin(), saved.paths.end()), now(paths.begin(), paths.end());
    for (const std::string& path : saved.paths) {
      if (!now.contains(path)) return other("file '" + path + "' is no longer among the files" + counts);
    }
    for (const std::string& path : paths) {
      if (!then.contains(path)) return other("file '" + path + "' was not among the files" + counts);
    }
    return other("the files come in another order, or not as often");
  }
  if (saved.contents.size() != contents.size()) {
    return DataLoss("the saved position has " + std::to_string(saved.contents.size()) + " contents of " + count(paths));
  }
  for (size_t i = 0; i < contents.size(); ++i) {
    if (saved.contents[i] != contents[i]) return other("file '" + paths[i] + "' has been rewritten");
  }
  if (saved.order != order) return other("it has another share of the rows, another batch size or other filters");
  return OkStatus();
}

}  // namespace lockstep::columnar
