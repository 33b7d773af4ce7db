#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/status.h"
#include "core/columnar/column.h"
#include "core/columnar/decoder.h"
#include "core/columnar/plan.h"
#include "core/columnar/run.h"
#include "core/columnar/source.h"

namespace lockstep::columnar {

// One pass over a worker's share, batch by batch: `batch_size` rows each, over all borders of row groups and files, but
// for the last. A column of a batch shares the decoded memory where the batch lies inside one piece, and is a copy
// where it does not. Next is for one thread; Cancel may be called from any.
//
//   LOCKSTEP_ASSIGN_OR_RETURN(std::shared_ptr<const Source> source, Source::Make(options));
//   Reader reader(source, 0);
//   while (true) {
//     LOCKSTEP_ASSIGN_OR_RETURN(Batch batch, reader.Next());
//     if (batch.rows == 0) break;
//     ...
//   }
//
// Decoding begins in the constructor, in the source's number of threads, and runs ahead of Next. Batches stay valid
// when the reader is gone. To start over, or from another position, make another reader.
class Reader {
 public:
  // A pass that begins after the first `position` rows of the share (0 or more; beyond the end there is nothing to
  // read). Row groups before it are not opened.
  Reader(std::shared_ptr<const Source> source, int64_t position);

  // The next batch, waiting for it; one without rows is the end. It shares memory with pieces and other batches. With
  // drop_remainder a last batch that is short counts as the end. Errors of decoding come behind the batches before
  // them; CANCELLED comes at once. The first error stays.
  Result<Batch> Next();

  // Ends the pass from any thread: Next returns CANCELLED, also where it waits.
  void Cancel() { decoder_.Cancel(); }

  // Rows of the share that have been handed out, or left out by a filter, or were passed over at the start.
  int64_t position() const { return position_; }

  // With skip_corrupted: rows so far that were left out because they could not be read, and why the first of them.
  int64_t refused_rows() const { return refused_rows_; }
  const Status& first_refused() const { return first_refused_; }

 private:
  // Rows of one piece.
  struct Part {
    std::shared_ptr<const Piece> piece;
    int64_t first;  // in the piece's columns
    int64_t rows;
  };

  // Next without the memory for its first error. All three are explained in reader.cc.
  Result<Batch> NextBatch();
  Result<std::vector<Part>> NextParts();
  Result<std::shared_ptr<const Piece>> PieceOf(const RowRange& range);
  void Count(const Refused& refused, int64_t first, int64_t rows);

  const std::shared_ptr<const Source> source_;
  // Goes through the same ranges as the decoder's own plan, behind it. No piece says which rows of it are wanted; that
  // both plans agree is what tells.
  RowPlan plan_;
  const std::shared_ptr<const Runs> runs_;
  std::optional<RowRange> range_;                       // what is left of the current one
  std::map<int, std::shared_ptr<const Piece>> pieces_;  // the current one of each open file
  int64_t position_;
  int64_t taken_;  // position_, once the batch that is being made has been handed out
  int64_t refused_rows_ = 0;
  Status first_refused_;
  Status error_;  // the end of the pass, where it ended badly
  Decoder decoder_;
};

}  // namespace lockstep::columnar
