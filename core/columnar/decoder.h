#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/columnar/column/column.h"
#include "core/columnar/column/parquet_file.h"
#include "core/columnar/plan.h"
#include "core/columnar/run.h"
#include "core/columnar/source.h"

namespace lockstep::columnar {

// Rows of one file that were decoded together, with all fields. Immutable once Next has returned it. Columns of batches
// share its memory, so it lives as long as any of them.
struct Piece {
  int file = 0;
  int64_t first = 0;  // in the file's run
  int64_t rows = 0;

  // The rows that the columns have, by their positions in the piece, ascending. No value means all rows.
  std::optional<std::vector<int64_t>> kept;
  // The columns in the order of the fields. Undefined if no row is kept.
  std::vector<Column> columns;
  // The rows that could not be read in any column; they are not kept.
  Refused refused;

  // Returns the number of rows that the columns have before position `row`.
  int64_t KeptBefore(int64_t row) const;
  // Returns the position after the columns' row `index`; no row between the two is kept.
  int64_t End(int64_t index) const { return (kept ? (*kept)[index] : index) + 1; }
};

// Decodes ahead of its consumer in its own threads. A unit of work is one column of one piece, so that files of any
// shape keep all threads busy. Columns are decoded in parallel, each from front to back. The next file begins while the
// last columns of the former one are still in work. Pieces come out in the order in which the plan first touches them,
// whichever thread ends first. A piece ends at the end of a batch, except the last one of a file.
// ```
// plan --ranges--> ScheduleNext --> tasks_    piece 7   piece 8   piece 9             in the order of the plan
//                                   column 0  done      done      at work
//                                   column 1  done      at work   waits for piece 8   Claim: the first that may begin
//                                               |
// consumer <-- Next <---------------------------+       the front, when all its columns are done
// ```
// With a filter the first unit of a piece is to find the rows that it keeps. The columns come after it: they read only
// these rows, and are passed over if there are none.
//
// Decoded pieces that are not yet taken count against a limit of rows. It bounds the memory to some 100 MB, besides
// what the consumer holds. Only one thread calls Next; any thread may call Cancel.
//
// Errors: ParquetFile's, and FAILED_PRECONDITION if a file's row groups differ from those that the Source read. An
// error takes the place of its piece, so all pieces before it come out first. CANCELLED comes at once.
class Decoder {
 public:
  // Starts the threads. `plan` stands `position` rows after the beginning of the share, and `runs` are what it reads
  // from there on.
  Decoder(std::shared_ptr<const Source> source, RowPlan plan, std::shared_ptr<const Runs> runs, int64_t position);

  // Cancels and waits for the threads, each of which decodes at most one more column of one piece.
  ~Decoder();

  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  // Waits for the next piece and returns it; null at the end of the plan. After an error it returns the same error
  // again. Taking a piece makes room for more.
  Result<std::shared_ptr<const Piece>> Next();

  // Ends the work: Next returns CANCELLED, even if it already waits. A column that is being decoded is not interrupted.
  // If Next has already returned an error, that error stays.
  void Cancel();

 private:
  // A file that is being read, and a piece that is being decoded; both are defined in decoder.cc.
  struct Stretch;
  struct Task;

  // Runs in each thread until the end: claims a column and decodes it, else schedules a piece, else waits. Holds mutex_
  // except while decoding.
  void Work() LOCKSTEP_EXCLUDES(mutex_);
  std::shared_ptr<Task> Claim(size_t* column) LOCKSTEP_REQUIRES(mutex_);
  bool ScheduleNext() LOCKSTEP_REQUIRES(mutex_);
  std::shared_ptr<Stretch> NewStretch(const RowRange& range) const LOCKSTEP_REQUIRES(mutex_);
  std::shared_ptr<Task> NewTask(const std::shared_ptr<Stretch>& stretch, int64_t first_wanted) const
      LOCKSTEP_REQUIRES(mutex_);
  // These use members that do not change or that only they may touch:
  Status Decode(Task& task, size_t column) LOCKSTEP_EXCLUDES(mutex_);
  Status Select(Task& task);
  Status DecodeField(Task& task, size_t field);
  Status DropRefused(Task& task) const;
  Result<std::shared_ptr<ParquetFile>> Open(Stretch& stretch) const;

  const std::shared_ptr<const Source> source_;
  const std::shared_ptr<const Runs> runs_;
  // The units of a piece: the fields, and with a filter one unit before them. filtered_ is their number before the
  // fields, 0 or 1.
  const size_t filtered_;
  const size_t columns_;
  // The number of pieces that may be scheduled and not yet taken, however many rows they have. It keeps the threads
  // busy if pieces are larger than the limit of rows.
  const int64_t least_pieces_;

  // Guards also the counters of stretches and tasks. It is held only for moments: whole columns are
  // decoded between two locks.
  Mutex mutex_;
  CondVar work_;   // there may be a column to decode
  CondVar ready_;  // a piece may be ready
  RowPlan plan_ LOCKSTEP_GUARDED_BY(mutex_);
  int64_t position_ LOCKSTEP_GUARDED_BY(mutex_);               // rows of the share before range_
  std::optional<RowRange> range_ LOCKSTEP_GUARDED_BY(mutex_);  // whose pieces are being scheduled
  bool plan_ended_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  bool stopped_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  Status error_ LOCKSTEP_GUARDED_BY(mutex_);
  // Stretches of the files that the plan will touch again.
  std::map<int, std::shared_ptr<Stretch>> stretches_ LOCKSTEP_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Task>> tasks_ LOCKSTEP_GUARDED_BY(mutex_);  // in order, not taken yet
  int64_t rows_ahead_ LOCKSTEP_GUARDED_BY(mutex_) = 0;                   // of tasks_

  // Started after all other members exist, and joined before any is destroyed. Only constructor and destructor touch
  // it.
  std::vector<std::thread> threads_;
};

}  // namespace lockstep::columnar
