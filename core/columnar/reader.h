#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/status.h"
#include "core/columnar/column/column.h"
#include "core/columnar/decoder.h"
#include "core/columnar/plan.h"
#include "core/columnar/run.h"
#include "core/columnar/source.h"

namespace lockstep::columnar {

// One pass over a worker's share, batch by batch. Each batch has `batch_size` rows, across row groups and files, except
// the last one. A column of a batch shares the decoded memory if the batch lies inside one piece; otherwise it is a
// copy. Only one thread calls Next; any thread may call Cancel.
// ```cpp
// LOCKSTEP_ASSIGN_OR_RETURN(std::shared_ptr<const Source> source, Source::Make(options));
// Reader reader(source, 0);
// while (true) {
//   LOCKSTEP_ASSIGN_OR_RETURN(Batch batch, reader.Next());
//   if (batch.rows == 0) break;
//   ...
// }
// ```
// The constructor starts the decoding, in the source's number of threads, which runs ahead of Next. Batches stay valid
// after the reader is destroyed. To start over, or at another position, make another reader.
class Reader {
 public:
  // Starts a pass after the first `position` rows of the share. `position` is 0 or more; beyond the end there is
  // nothing to read. Row groups before it are not opened.
  Reader(std::shared_ptr<const Source> source, int64_t position);

  // Waits for the next batch and returns it; a batch without rows is the end. It shares memory with pieces and other
  // batches. With drop_remainder, a short last batch counts as the end. An error of decoding comes after the batches
  // before it; CANCELLED comes at once. The first error stays.
  Result<Batch> Next();

  // Ends the pass, from any thread: Next returns CANCELLED, even if it already waits.
  void Cancel() { decoder_.Cancel(); }

  // Returns the number of rows of the share that were returned, dropped by a filter, or passed over at the start.
  int64_t position() const { return position_; }

  // With skip_corrupted: the number of rows left out so far because they could not be read, and the error of the first
  // one.
  int64_t refused_rows() const { return refused_rows_; }
  const Status& first_refused() const { return first_refused_; }

 private:
  // Rows of one piece.
  struct Part {
    std::shared_ptr<const Piece> piece;
    int64_t first;  // in the piece's columns
    int64_t rows;
  };

  // Next without the memory for its first error. reader.cc explains all four.
  Result<Batch> NextBatch();
  Result<std::vector<Part>> NextParts();
  Result<std::shared_ptr<const Piece>> PieceOf(const RowRange& range);
  void Count(const Refused& refused, int64_t first, int64_t rows);

  const std::shared_ptr<const Source> source_;
  // Goes through the same ranges as the decoder's own plan, later than it. Pieces do not tell which of their rows are
  // wanted; that follows from both plans being equal.
  RowPlan plan_;
  const std::shared_ptr<const Runs> runs_;
  std::optional<RowRange> range_;                       // the rest of the current one
  std::map<int, std::shared_ptr<const Piece>> pieces_;  // the current one of each open file
  int64_t position_;
  int64_t taken_;  // position_ after the batch that is being made
  int64_t refused_rows_ = 0;
  Status first_refused_;
  Status error_;  // the error that ended the pass
  Decoder decoder_;
};

}  // namespace lockstep::columnar
