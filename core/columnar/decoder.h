#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "core/base/status.h"
#include "core/columnar/column.h"
#include "core/columnar/parquet_file.h"
#include "core/columnar/plan.h"
#include "core/columnar/run.h"
#include "core/columnar/source.h"

namespace lockstep::columnar {

// Rows of one file that were decoded together, all fields. Immutable once Next has returned it; columns of batches
// share its memory, so it lives as long as any of them does.
struct Piece {
  int file = 0;
  int64_t first = 0;  // in the file's run
  int64_t rows = 0;

  // Which of these rows the columns have, by their positions among them, ascending. Nothing: all.
  std::optional<std::vector<int64_t>> kept;
  // In the order of the fields. Without meaning where no row is kept.
  std::vector<Column> columns;
  // Rows that could not be read, of whatever columns: they are not kept.
  Refused refused;

  // Rows of the columns that come before position `row`.
  int64_t KeptBefore(int64_t row) const;
  // The position behind the columns' row `index`, up to which nothing else is kept.
  int64_t Behind(int64_t index) const { return (kept ? (*kept)[index] : index) + 1; }
};

// Decodes ahead of its consumer in threads of its own. A unit of work is one column of one piece, so that files of any
// shape keep all threads busy: columns are decoded beside each other, each from front to back, and the next file is
// begun while the last columns of the one before are still at work. Pieces come out in the order in which the plan
// first touches them, whichever thread ends first. They end where a batch ends, but for the last of a file.
//
//   plan --ranges--> ScheduleNext --> tasks_    piece 7   piece 8   piece 9             in the order of the plan
//                                     column 0  done      done      at work
//                                     column 1  done      at work   waits for piece 8   Claim: the first that may begin
//                                                 |
//   consumer <-- Next <---------------------------+       the front, when all its columns are done
//
// With a filter the first unit of a piece is to find the rows that it keeps, and the columns come after it: they have
// these rows alone, and are passed over where there are none.
//
// Pieces that were decoded and not yet taken count against a limit of rows, which bounds the memory to some 100 MB
// besides what the consumer holds. Next is for one thread; Cancel may be called from any.
//
// Errors: what ParquetFile says, and FAILED_PRECONDITION where a file's row groups are no longer those that the Source
// saw. An error takes the place of its piece: all pieces before it come out first. CANCELLED comes at once.
class Decoder {
 public:
  // Starts the threads. `plan` stands `position` rows behind the beginning of the share, and `runs` are what it reads
  // from there.
  Decoder(std::shared_ptr<const Source> source, RowPlan plan, std::shared_ptr<const Runs> runs, int64_t position);

  // Cancels and waits for the threads: for at most one column of one piece each.
  ~Decoder();

  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  // The next piece, waiting for it; null when the plan has no more. After an error the same error again. Taking a piece
  // makes room for more to be decoded.
  Result<std::shared_ptr<const Piece>> Next();

  // Ends the work; Next returns CANCELLED, also where it waits. What is being decoded is not interrupted. An error that
  // Next has returned before stays.
  void Cancel();

 private:
  // A file that is being read, and a piece in the making: both in decoder.cc.
  struct Stretch;
  struct Task;

  // What a thread does until the end: claim a column and decode it, else schedule a piece, else wait. mutex_ is held
  // but for decoding.
  void Work();
  // These need mutex_:
  std::shared_ptr<Task> Claim(size_t* column);
  bool ScheduleNext();
  std::shared_ptr<Stretch> NewStretch(const RowRange& range) const;
  std::shared_ptr<Task> NewTask(const std::shared_ptr<Stretch>& stretch, int64_t first_wanted) const;
  // These run without mutex_, and take what they need from members that don't change or that they alone may touch:
  Status Decode(Task& task, size_t column);
  Status Select(Task& task);
  Status DecodeField(Task& task, size_t field);
  Status DropRefused(Task& task) const;
  Result<std::shared_ptr<ParquetFile>> Open(Stretch& stretch) const;

  const std::shared_ptr<const Source> source_;
  const std::shared_ptr<const Runs> runs_;
  // Units of a piece: the fields and, with a filter, one before them (filtered_ of them, 0 or 1).
  const size_t filtered_;
  const size_t columns_;
  // Pieces that may be scheduled and not yet taken, however many rows they have: what keeps the threads busy where
  // pieces are larger than the limit of rows.
  const int64_t least_pieces_;

  // Guards what is marked below, and the counters of stretches and tasks. It is held for moments alone: whole columns
  // are decoded between two locks.
  std::mutex mutex_;
  std::condition_variable work_;   // there may be a column to decode
  std::condition_variable ready_;  // a piece may be ready
  // Guarded by mutex_:
  RowPlan plan_;
  int64_t position_;               // rows of the share before range_
  std::optional<RowRange> range_;  // whose pieces are being scheduled
  bool plan_ended_ = false;
  bool stopped_ = false;
  Status error_;
  std::map<int, std::shared_ptr<Stretch>> stretches_;  // of the files that the plan will touch again
  std::deque<std::shared_ptr<Task>> tasks_;            // in order, not taken yet
  int64_t rows_ahead_ = 0;                             // of tasks_

  // Started when all else is there, and joined before anything goes. Only constructor and destructor touch it.
  std::vector<std::thread> threads_;
};

}  // namespace lockstep::columnar
