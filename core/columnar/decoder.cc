// How work is divided. A unit is a column of a piece, which is the smallest part that can be decoded on its own. A
// Parquet column is a stream without random access inside a row group, so the pieces of one column of a file are
// decoded one after another (`Stretch::decoded`). The columns are independent of each other.
//
// A thread that looks for work walks through the tasks in order and takes the first column whose former piece is done.
// So the piece that the consumer waits for has priority, and a thread takes a later one only if that piece needs no
// more work. If no column can be claimed, the thread schedules one more piece if the limit allows it, and else waits.
//
// Wake-ups. work_ signals that a column may be ready to claim or that there may be room to schedule. That is after a
// piece was scheduled or taken, or a column is done. ready_ signals that the front may be done, an error occurred, or
// the plan ended. Waiters check their condition again under mutex_, so a needless notification costs one check and none
// is lost.
//
// Data shared without the mutex: a stream and its column of a piece belong to the thread that claimed the column, until
// it raises `decoded` under mutex_. This also passes the stream to the next thread, and the columns to the consumer.
//
// A share may leave out rows inside a file (batches of other ranks, with PartitionBy::kBatches). Such rows are part of
// the stretch: pieces that are not `wanted` pass over them. These are skipped column by column and never returned.
#include "core/columnar/decoder.h"

#include <pthread.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <string>
#include <system_error>

#include "core/base/float_mode.h"
#include "core/base/mutex.h"
#include "core/columnar/files/files.h"
#include "core/columnar/tolerant.h"

namespace lockstep::columnar {

// A file's run that is being read. The thread that decodes a column's first piece opens its stream. Only one thread
// works on a column at a time; `decoded` gives the next piece of each column.
struct Decoder::Stretch {
  int file = 0;
  const Run* run = nullptr;
  int64_t piece_rows = 1;
  int64_t first_end = 0;  // where the first piece ends, in the run

  Mutex open_mutex;
  std::shared_ptr<ParquetFile> opened LOCKSTEP_GUARDED_BY(open_mutex);

  // The streams of the fields, and the selector of the rows that the filter keeps.
  std::vector<TolerantStream<ColumnStream>> streams;
  std::optional<TolerantStream<RowSelector>> selector;

  // Guarded by the decoder's mutex_.
  int64_t tasks = 0;             // pieces scheduled
  int64_t scheduled = 0;         // the row of the run up to which they reach
  std::vector<int64_t> decoded;  // pieces, for each column; with a filter, it is the first column
};

// A piece that is being decoded. Counters and error are guarded by the decoder's mutex_. The columns of `piece` and
// `refused` belong to their claimers until `done` counts them. The other members do not change.
struct Decoder::Task {
  std::shared_ptr<Stretch> stretch;
  int64_t index = 0;    // of the piece in its stretch
  bool wanted = false;  // if not, it is only passed over
  std::shared_ptr<Piece> piece;
  std::vector<Refused> refused;  // rows refused by each column
  size_t claimed = 0;            // columns
  size_t done = 0;               // columns
  Status error;                  // the first error
};

namespace {

// Two pieces keep all threads busy if there are more columns than threads: one is finished while the next begins. With
// fewer columns than threads, the remaining threads work on later files.
int64_t LeastPieces(int64_t threads, int64_t columns) { return 2 + (threads + columns - 1) / columns; }

}  // namespace

int64_t Piece::KeptBefore(int64_t row) const {
  return kept ? std::lower_bound(kept->begin(), kept->end(), row) - kept->begin() : row;
}

Decoder::Decoder(std::shared_ptr<const Source> source, RowPlan plan, std::shared_ptr<const Runs> runs, int64_t position)
    : source_(std::move(source)),
      runs_(std::move(runs)),
      filtered_(source_->options().filter.empty() ? 0 : 1),
      columns_(filtered_ + source_->options().fields.size()),
      least_pieces_(LeastPieces(source_->threads(), static_cast<int64_t>(columns_))),
      plan_(std::move(plan)),
      position_(position) {
  try {
    for (int64_t i = 0; i < source_->threads(); ++i) {
      threads_.emplace_back([this] { Work(); });
      pthread_setname_np(threads_.back().native_handle(), "lockstep-data");
    }
  } catch (const std::system_error& error) {
    // Fewer threads suffice, but none does not.
    if (threads_.empty()) error_ = ResourceExhausted(std::string("cannot start a thread to decode: ") + error.what());
  }
}

Decoder::~Decoder() {
  Cancel();
  for (std::thread& thread : threads_) thread.join();
}

void Decoder::Cancel() {
  const MutexLock lock(mutex_);
  stopped_ = true;
  if (error_.ok()) error_ = Cancelled("reading was cancelled");
  work_.NotifyAll();
  ready_.NotifyAll();
}

Result<std::shared_ptr<const Piece>> Decoder::Next() {
  const MutexLock lock(mutex_);
  while (true) {
    if (!error_.ok()) return error_;
    if (!tasks_.empty()) {
      const std::shared_ptr<Task> task = tasks_.front();
      // No piece after an error is returned, so the threads have nothing left to do.
      if (!task->error.ok()) {
        error_ = task->error;
        stopped_ = true;
        work_.NotifyAll();
        return error_;
      }
      if (task->done == columns_) {
        tasks_.pop_front();
        rows_ahead_ -= task->piece->rows;
        work_.NotifyAll();
        if (task->wanted) return std::shared_ptr<const Piece>(task->piece);
        continue;
      }
    } else if (plan_ended_) {
      return std::shared_ptr<const Piece>();
    }
    ready_.Wait(mutex_);
  }
}

void Decoder::Work() {
  const GradualUnderflow mode;  // values are converted and checked as in other programs
  MutexLock lock(mutex_);
  while (!stopped_) {
    size_t column = 0;
    const std::shared_ptr<Task> task = Claim(&column);
    if (task == nullptr) {
      if (!ScheduleNext()) work_.Wait(mutex_);
      continue;
    }
    // Decoding is the only slow part, and the only one without the lock.
    lock.unlock();
    Status status = Decode(*task, column);
    lock.lock();
    // The thread of the last column completes the piece; no other thread works on it any more.
    if (status.ok() && task->error.ok() && task->done + 1 == columns_ && source_->options().skip_corrupted) {
      lock.unlock();
      status = DropRefused(*task);
      lock.lock();
    }
    ++task->stretch->decoded[column];
    // The column counts as decoded even if it failed: no thread claims work after an error, and waiting threads are
    // woken.
    if (task->error.ok()) task->error = std::move(status);
    ++task->done;
    if (task->done == columns_ || !task->error.ok()) ready_.NotifyAll();
    // A waiting thread can now claim the column's next piece; after the filter, all columns of this piece.
    if (column < filtered_) {
      work_.NotifyAll();
    } else {
      work_.NotifyOne();
    }
  }
}

// Returns the first column, in the order of the pieces, that no thread decodes yet and whose former piece is decoded. A
// piece's columns are claimed in the order of the fields, so one number says which are left. With a filter, which is
// the first column, no field is claimed before the filter is done.
std::shared_ptr<Decoder::Task> Decoder::Claim(size_t* column) {
  for (const std::shared_ptr<Task>& task : tasks_) {
    // After an error no more work is useful.
    if (!task->error.ok()) return nullptr;
    if (task->claimed == columns_ || task->stretch->decoded[task->claimed] != task->index) continue;
    if (task->claimed >= filtered_ && task->done < filtered_) continue;
    *column = task->claimed++;
    return task;
  }
  return nullptr;
}

// Schedules the next piece of the plan's ranges. Returns false without room or a further range. A range may need
// several pieces, or none if the last piece reaches beyond it. range_ stays until pieces reach its end. The limit is
// checked before a piece and not after it; at most one piece exceeds it.
bool Decoder::ScheduleNext() {
  if (plan_ended_) return false;
  if (!range_) range_ = plan_.Next();
  if (!range_) {
    plan_ended_ = true;
    ready_.NotifyAll();
    return false;
  }
  if (static_cast<int64_t>(tasks_.size()) >= least_pieces_ &&
      rows_ahead_ >= source_->files()[range_->file].rows_ahead) {
    return false;
  }
  std::shared_ptr<Stretch>& stretch = stretches_[range_->file];
  if (stretch == nullptr) stretch = NewStretch(*range_);
  const int64_t begin = stretch->run->Position(*range_), end = begin + range_->rows;
  // A range that ends in the last scheduled piece needs no new piece.
  if (stretch->scheduled < end) {
    tasks_.push_back(NewTask(stretch, begin));
    rows_ahead_ += tasks_.back()->piece->rows;
  }
  if (stretch->scheduled >= end) {
    if (range_->last_of_file) stretches_.erase(range_->file);
    position_ += range_->rows;
    range_.reset();
  }
  work_.NotifyAll();
  return true;
}

// Returns the stretch of the file in which `range` lies. Its first piece begins at the first wanted row and ends at the
// end of a batch. Batches are counted over the whole share, so a file usually begins in the middle of one, at
// `position_` modulo the batch size. The later pieces are whole batches. The alignment only saves copies: a batch that
// lies in two pieces is correct as well.
std::shared_ptr<Decoder::Stretch> Decoder::NewStretch(const RowRange& range) const {
  const Source::File& file = source_->files()[range.file];
  const int64_t batch_size = source_->options().plan.batch_size;
  auto stretch = std::make_shared<Stretch>();
  stretch->file = range.file;
  stretch->run = &runs_->at(range.file);
  stretch->piece_rows = file.piece_rows;
  stretch->scheduled = stretch->run->Position(range);
  stretch->first_end = stretch->scheduled + file.piece_rows;
  if (file.piece_rows % batch_size == 0) stretch->first_end -= position_ % batch_size;
  // No stream outlives its stretch, so plain pointers suffice.
  const bool tolerant = source_->options().skip_corrupted;
  Stretch* const whole = stretch.get();
  for (const Field& field : source_->options().fields) {
    const auto open = [this, whole, &field](const std::vector<int>& groups) -> Result<std::unique_ptr<ColumnStream>> {
      LOCKSTEP_ASSIGN_OR_RETURN(const std::shared_ptr<ParquetFile> file, Open(*whole));
      return file->OpenColumn(groups, field);
    };
    stretch->streams.emplace_back(stretch->run, stretch->scheduled, tolerant, open);
  }
  const auto open = [this, whole](const std::vector<int>& groups) -> Result<std::unique_ptr<RowSelector>> {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::shared_ptr<ParquetFile> file, Open(*whole));
    return file->OpenSelector(groups, source_->options().filter);
  };
  stretch->selector.emplace(stretch->run, stretch->scheduled, tolerant, open);
  stretch->decoded.resize(columns_);
  return stretch;
}

// Returns the next piece of a stretch. It is wanted if it reaches beyond row `first_wanted` of the run.
std::shared_ptr<Decoder::Task> Decoder::NewTask(const std::shared_ptr<Stretch>& stretch, int64_t first_wanted) const {
  const int64_t end = stretch->tasks == 0 ? stretch->first_end : stretch->scheduled + stretch->piece_rows;
  auto task = std::make_shared<Task>();
  task->stretch = stretch;
  task->index = stretch->tasks++;
  task->piece = std::make_shared<Piece>();
  task->piece->file = stretch->file;
  task->piece->first = stretch->scheduled;
  task->piece->rows = std::min(end, stretch->run->rows) - stretch->scheduled;
  task->piece->columns.resize(stretch->streams.size());
  task->refused.resize(columns_);
  stretch->scheduled += task->piece->rows;
  task->wanted = stretch->scheduled > first_wanted;
  return task;
}

// Finds the rows that the filter keeps, or decodes a field.
Status Decoder::Decode(Task& task, size_t column) {
  return column < filtered_ ? Select(task) : DecodeField(task, column - filtered_);
}

// Reads or passes over a field's rows of the piece. Between two tasks the stream stands at the beginning of the next
// piece.
Status Decoder::DecodeField(Task& task, size_t field) {
  TolerantStream<ColumnStream>& stream = task.stretch->streams[field];
  Piece& piece = *task.piece;
  if (!task.wanted || (piece.kept && piece.kept->empty())) return stream.Skip(piece.rows);
  const bool skip_corrupted = source_->options().skip_corrupted;
  Refused& refused = task.refused[filtered_ + field];
  std::vector<Column> parts;
  const auto read = [&](ColumnStream& column, int64_t first, int64_t rows) -> Status {
    std::optional<std::vector<int64_t>> kept;
    if (piece.kept) {
      const auto begin = piece.kept->begin() + piece.KeptBefore(first);
      kept.emplace(begin, piece.kept->begin() + piece.KeptBefore(first + rows));
      for (int64_t& row : *kept) row -= first;
    }
    Refused here;
    LOCKSTEP_ASSIGN_OR_RETURN(Column part,
                              column.Read(rows, kept ? &*kept : nullptr, skip_corrupted ? &here : nullptr));
    for (int64_t row : here.rows) refused.Add(first + row, first + row + 1, here.first);
    if (part.rows > 0) parts.push_back(std::move(part));
    return OkStatus();
  };
  LOCKSTEP_RETURN_IF_ERROR(stream.Take(piece.rows, read, [&](int64_t first, int64_t rows, const Status& status) {
    refused.Add(first, first + rows, status);
  }));
  if (parts.size() == 1) {
    piece.columns[field] = std::move(parts[0]);
  } else if (!parts.empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(piece.columns[field], Concatenate(parts));
  }
  return OkStatus();
}

// If the filter keeps all rows of a piece, `kept` stays empty: a list would have to be walked through.
Status Decoder::Select(Task& task) {
  Piece& piece = *task.piece;
  std::vector<int64_t> kept;
  const auto read = [&](RowSelector& selector, int64_t first, int64_t rows) -> Status {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<int64_t> passing, selector.Read(rows));
    for (int64_t row : passing) kept.push_back(first + row);
    return OkStatus();
  };
  LOCKSTEP_RETURN_IF_ERROR(task.stretch->selector->Take(
      piece.rows, read,
      [&](int64_t first, int64_t rows, const Status& status) { task.refused[0].Add(first, first + rows, status); }));
  if (static_cast<int64_t>(kept.size()) < piece.rows) piece.kept = std::move(kept);
  return OkStatus();
}

// Removes the rows that any column refused from all other columns. Rows that the filter drops are refused by no field;
// only the filter itself refuses rows that it could not read.
Status Decoder::DropRefused(Task& task) const {
  Piece& piece = *task.piece;
  std::vector<bool> bad(piece.rows, false);
  for (const Refused& refused : task.refused) {
    if (!refused.rows.empty() && piece.refused.first.ok()) piece.refused.first = refused.first;
    for (int64_t row : refused.rows) bad[row] = true;
  }
  if (piece.refused.first.ok()) return OkStatus();
  std::vector<int64_t> before(piece.rows), kept;
  std::iota(before.begin(), before.end(), 0);
  if (piece.kept) before = *piece.kept;
  const auto is_good = [&](int64_t row) { return !bad[row]; };
  std::copy_if(before.begin(), before.end(), std::back_inserter(kept), is_good);
  for (size_t field = 0; field < piece.columns.size() && !kept.empty(); ++field) {
    const std::vector<int64_t>& refused = task.refused[filtered_ + field].rows;
    std::vector<int64_t> has;  // rows of the column
    std::set_difference(before.begin(), before.end(), refused.begin(), refused.end(), std::back_inserter(has));
    std::vector<RowRun> runs;
    for (int64_t i = 0; i < static_cast<int64_t>(has.size()); ++i) {
      if (bad[has[i]]) continue;
      if (!runs.empty() && runs.back().first + runs.back().rows == i) {
        ++runs.back().rows;
      } else {
        runs.push_back({&piece.columns[field], i, 1});
      }
    }
    LOCKSTEP_ASSIGN_OR_RETURN(piece.columns[field], Gather(runs));
  }
  for (int64_t row = 0; row < piece.rows; ++row) {
    if (bad[row]) piece.refused.rows.push_back(row);
  }
  piece.kept = std::move(kept);
  return OkStatus();
}

// Opens the file once for all columns. Threads that come meanwhile wait for it, and try again if it failed. A file that
// was replaced after the Source read its footer would give other rows than the plan counts, hence the comparison.
Result<std::shared_ptr<ParquetFile>> Decoder::Open(Stretch& stretch) const {
  const MutexLock lock(stretch.open_mutex);
  if (stretch.opened != nullptr) return stretch.opened;
  const Source::File& known = source_->files()[stretch.file];
  LOCKSTEP_RETURN_IF_ERROR(source_->options().checksums->Verify(known.path));
  LOCKSTEP_ASSIGN_OR_RETURN(std::shared_ptr<ParquetFile> file, OpenParquetFile(known.path));
  LOCKSTEP_RETURN_IF_ERROR(file->Check(source_->options().fields));
  if (file->group_rows() != known.group_rows) {
    return FailedPrecondition("file '" + known.path + "' has changed since its footer was first read");
  }
  stretch.opened = std::move(file);
  return stretch.opened;
}

}  // namespace lockstep::columnar
