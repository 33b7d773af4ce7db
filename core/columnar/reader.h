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
class Reader {
 public:
  struct Batch {
    int64_t rows = 0;             // 0: the end
    std::vector<Column> columns;  // in the order of the source's fields
  };

  // A pass that begins after the first `position` rows of the share.
  Reader(std::shared_ptr<const Source> source, int64_t position);

  Result<Batch> Next();

  void Cancel() { decoder_.Cancel(); }

  // Rows of the share that have been handed out, or were passed over at the start.
  int64_t position() const { return position_; }

 private:
  // Rows of one piece.
  struct Part {
    std::shared_ptr<const Piece> piece;
    int64_t first;  // in the piece
    int64_t rows;
  };

  Result<std::vector<Part>> NextParts();
  Result<std::shared_ptr<const Piece>> PieceOf(const RowRange& range);

  const std::shared_ptr<const Source> source_;
  // Goes through the same ranges as the decoder's own plan, behind it.
  RowPlan plan_;
  const std::shared_ptr<const Runs> runs_;
  std::optional<RowRange> range_;                       // what is left of the current one
  std::map<int, std::shared_ptr<const Piece>> pieces_;  // the current one of each open file
  int64_t position_;
  Decoder decoder_;
};

}  // namespace lockstep::columnar
