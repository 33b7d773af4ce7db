// Cuts decoded pieces into batches. Two copies of one plan advance one after the other: the decoder's copy decides what
// is decoded, and this one tells where the next batch's rows lie. A batch is a list of parts of pieces:
// ```
// pieces    |------- 0 -------|------- 1 -------|---- 2 ----|      0 and 1 are of one file, 2 is of the next
// batches   |--- a ---|--- b ---|--- c ---|--- d ---|-- e --|
// parts      0         0, 1      1         1, 2      2
// ```
// Each column of each part is a slice, which shares memory. Only the parts of a batch that spans several pieces are
// copied together. The decoder makes pieces end where batches end, so this is the exception.
#include "core/columnar/reader.h"

#include <algorithm>

namespace lockstep::columnar {
namespace {

RowPlan PlanFrom(const Source& source, int64_t position) {
  RowPlan plan = source.NewPlan();
  plan.Skip(position);
  return plan;
}

}  // namespace

Reader::Reader(std::shared_ptr<const Source> source, int64_t position)
    : source_(std::move(source)),
      plan_(PlanFrom(*source_, position)),
      runs_(RunsOf(*source_, plan_)),
      position_(position),
      taken_(position),
      decoder_(source_, plan_, runs_, position) {}

// The plan moves before columns are cut, the position moves after it. If a batch is lost in between for lack of memory,
// the rows of the next one would not match position(). So no batch follows an error; another reader may be started at
// position().
Result<Batch> Reader::Next() {
  LOCKSTEP_RETURN_IF_ERROR(error_);
  Result<Batch> batch = NextBatch();
  error_ = batch.status();
  return batch;
}

Result<Batch> Reader::NextBatch() {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Part> parts, NextParts());
  Batch batch;
  for (const Part& part : parts) batch.rows += part.rows;
  if (batch.rows == 0) return batch;
  if (source_->options().drop_remainder && batch.rows < source_->options().plan.batch_size) return Batch{};
  for (size_t column = 0; column < source_->options().fields.size(); ++column) {
    std::vector<Column> slices;
    for (const Part& part : parts) {
      LOCKSTEP_ASSIGN_OR_RETURN(Column slice, Slice(part.piece->columns[column], part.first, part.rows));
      slices.push_back(std::move(slice));
    }
    if (slices.size() == 1) {
      batch.columns.push_back(std::move(slices[0]));
    } else {
      LOCKSTEP_ASSIGN_OR_RETURN(Column joined, Concatenate(slices));
      batch.columns.push_back(std::move(joined));
    }
  }
  position_ = taken_;
  return batch;
}

// Returns the parts of pieces that make the next batch; at the end it may have fewer rows. Each round takes the least
// of three numbers: rows that the batch still needs, rows left in the range, and rows left in the piece. In a filtered
// piece they are counted in kept rows, and the range continues after the last of them. So a position always lies right
// after a batch's last row. A file's last piece is released with its last range. Otherwise, with files read in turn, it
// would stay until the end of the pass.
Result<std::vector<Reader::Part>> Reader::NextParts() {
  std::vector<Part> parts;
  int64_t missing = source_->options().plan.batch_size;
  while (missing > 0) {
    if (!range_) range_ = plan_.Next();
    if (!range_) break;
    LOCKSTEP_ASSIGN_OR_RETURN(const std::shared_ptr<const Piece> piece, PieceOf(*range_));
    const int64_t position = runs_->at(range_->file).Position(*range_) - piece->first;
    int64_t passed = std::min(range_->rows, piece->rows - position);
    const int64_t first = piece->KeptBefore(position);
    int64_t rows = piece->KeptBefore(position + passed) - first;
    if (rows >= missing) {
      rows = missing;
      passed = piece->End(first + rows - 1) - position;
    }
    Count(piece->refused, position, passed);
    // Ranges end with row groups, not with pieces.
    if (!parts.empty() && parts.back().piece == piece && parts.back().first + parts.back().rows == first) {
      parts.back().rows += rows;
    } else if (rows > 0) {
      parts.push_back({piece, first, rows});
    }
    missing -= rows;
    taken_ += passed;
    range_->first += passed;
    range_->rows -= passed;
    if (range_->rows > 0) continue;
    if (range_->last_of_file) pieces_.erase(range_->file);
    range_.reset();
  }
  return parts;
}

// Counts the refused rows among `rows` rows from `first` on, so that every row counts once.
void Reader::Count(const Refused& refused, int64_t first, int64_t rows) {
  const auto begin = std::lower_bound(refused.rows.begin(), refused.rows.end(), first);
  const auto count = std::lower_bound(begin, refused.rows.end(), first + rows) - begin;
  if (count > 0 && refused_rows_ == 0) first_refused_ = refused.first;
  refused_rows_ += count;
}

// Returns the piece that holds the range's first row: the file's current one, or the decoder's next one. A file needs
// one piece at a time, as its ranges ascend. Both plans are the same, so the decoder's next piece is of this file and
// holds the row. INTERNAL if it is not, instead of wrong rows.
Result<std::shared_ptr<const Piece>> Reader::PieceOf(const RowRange& range) {
  const int64_t position = runs_->at(range.file).Position(range);
  std::shared_ptr<const Piece>& current = pieces_[range.file];
  if (current != nullptr && position < current->first + current->rows) return current;
  current.reset();  // before the wait, because its memory is no longer needed
  LOCKSTEP_ASSIGN_OR_RETURN(current, decoder_.Next());
  if (current == nullptr || current->file != range.file || position < current->first ||
      position >= current->first + current->rows) {
    return Internal("the decoder's pieces are out of step with the plan");
  }
  return current;
}

}  // namespace lockstep::columnar
