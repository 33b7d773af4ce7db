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
#include "core/columnar/plan.h"
#include "core/columnar/run.h"
#include "core/columnar/source.h"

namespace lockstep::columnar {

// Rows of one file that were decoded together, all fields.
struct Piece {
  int file = 0;
  int64_t first = 0;  // in the file's run
  int64_t rows = 0;
  std::vector<Column> columns;  // in the order of the fields
};

// Decodes ahead of its consumer in threads of its own. A unit of work is one column of one piece, so that files of any
// shape keep all threads busy: columns are decoded beside each other, each from front to back, and the next file is
// begun while the last columns of the one before are still at work. Pieces come out in the order in which the plan
// first touches them, whichever thread ends first. They end where a batch ends, but for the last of a file.
//
// A piece that was decoded and not yet taken counts against a limit, which bounds the memory to a few pieces besides
// those that the consumer holds. Next is for one thread; Cancel may be called from any.
class Decoder {
 public:
  // Starts the threads. `plan` stands `position` rows behind the beginning of the share, and `runs` are what it reads
  // from there.
  Decoder(std::shared_ptr<const Source> source, RowPlan plan, std::shared_ptr<const Runs> runs, int64_t position);

  // Cancels and waits for the threads: for at most one column of one piece each.
  ~Decoder();

  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  // The next piece, waiting for it; null when the plan has no more. After an error the same error again.
  Result<std::shared_ptr<const Piece>> Next();

  // Ends the work; Next returns CANCELLED, also where it waits.
  void Cancel();

 private:
  struct Stretch;
  struct Task;

  void Work();
  std::shared_ptr<Task> Claim(size_t* column);
  bool ScheduleNext();
  std::shared_ptr<Stretch> NewStretch(const RowRange& range) const;
  std::shared_ptr<Task> NewTask(const std::shared_ptr<Stretch>& stretch, int64_t first_wanted) const;
  Status Decode(Task& task, size_t column);
  Status Open(Stretch& stretch) const;

  const std::shared_ptr<const Source> source_;
  const std::shared_ptr<const Runs> runs_;
  // Pieces that may be scheduled and not yet taken.
  const int64_t limit_;

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

  std::vector<std::thread> threads_;
};

}  // namespace lockstep::columnar
