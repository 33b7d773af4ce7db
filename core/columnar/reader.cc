// Cuts decoded pieces into batches. Two copies of one plan run one behind the other: the decoder's, which decides what
// is decoded, and this one, which says where the next batch's rows lie. A batch is a list of parts of pieces:
//
//   pieces    |------- 0 -------|------- 1 -------|---- 2 ----|      0 and 1 are of one file, 2 is of the next
//   batches   |--- a ---|--- b ---|--- c ---|--- d ---|-- e --|
//   parts      0         0, 1      1         1, 2      2
//
// Each column of each part is a slice, which shares memory; only where a batch has several parts they are copied
// together. Pieces are made to end where batches end (Decoder), so that this is the exception.
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

// The plan moves before columns are cut, the position after: behind a batch that was lost in between, for lack of
// memory, the next one would be of other rows than position() says. So no batch follows an error; another reader may be
// started at position().
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

// The parts of pieces that make the next batch; fewer rows at the end. Each round takes what the batch still needs, the
// range still has and the piece still holds, whichever is least. Of a filtered piece that is counted in the rows that
// were kept, and the range goes on behind the last of them: so that a position always lies right behind a batch's last
// row. A file's last piece is let go with its last range: with files read in turn, it would else stay to the end of the
// pass.
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
      passed = piece->Behind(first + rows - 1) - position;
    }
    Count(piece->refused, position, passed);
    // Ranges end where row groups do, which says nothing about the piece.
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

// Counts those of the refused rows that lie among `rows` rows from `first` on, so that every row counts once.
void Reader::Count(const Refused& refused, int64_t first, int64_t rows) {
  const auto begin = std::lower_bound(refused.rows.begin(), refused.rows.end(), first);
  const auto count = std::lower_bound(begin, refused.rows.end(), first + rows) - begin;
  if (count > 0 && refused_rows_ == 0) first_refused_ = refused.first;
  refused_rows_ += count;
}

// The piece that holds the range's first row: the file's current one, or the decoder's next. A file needs one piece at
// a time, as its ranges ascend. That the decoder's next one is of this file and holds the row follows from both plans
// being the same; INTERNAL says that they are not, rather than to hand out wrong rows.
Result<std::shared_ptr<const Piece>> Reader::PieceOf(const RowRange& range) {
  const int64_t position = runs_->at(range.file).Position(range);
  std::shared_ptr<const Piece>& current = pieces_[range.file];
  if (current != nullptr && position < current->first + current->rows) return current;
  current.reset();  // before the wait: its memory is not needed any more
  LOCKSTEP_ASSIGN_OR_RETURN(current, decoder_.Next());
  if (current == nullptr || current->file != range.file || position < current->first ||
      position >= current->first + current->rows) {
    return Internal("the decoder's pieces are out of step with the plan");
  }
  return current;
}

}  // namespace lockstep::columnar
