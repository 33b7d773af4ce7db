#include "core/columnar/decoder.h"

#include <pthread.h>

#include <algorithm>

#include "core/columnar/parquet_file.h"

namespace lockstep::columnar {

// A row group that is being read. A column's stream is opened by whoever decodes the column's first piece, and only one
// thread works on a column at a time: `decoded` says which piece of it is next.
struct Decoder::Group {
  int file = 0;
  int index = 0;
  int64_t rows = 0;
  int64_t piece_rows = 1;
  std::vector<std::unique_ptr<ColumnStream>> streams;
  int64_t scheduled = 0;         // pieces; guarded by mutex_
  std::vector<int64_t> decoded;  // pieces, for each column; guarded by mutex_
};

// A piece in the making.
struct Decoder::Task {
  std::shared_ptr<Group> group;
  int64_t index = 0;    // of the piece in its row group
  bool wanted = false;  // else decoded only to get past it
  std::shared_ptr<Piece> piece;
  size_t claimed = 0;  // columns; guarded by mutex_
  size_t done = 0;     // columns; guarded by mutex_
  Status error;        // the first; guarded by mutex_
};

namespace {

// Two pieces keep all threads busy as long as there are more columns than threads: one is finished while the next is
// begun. With fewer columns than threads the rest works on later row groups.
int64_t PieceLimit(int64_t threads, int64_t columns) { return 2 + (threads + columns - 1) / columns; }

}  // namespace

Decoder::Decoder(std::shared_ptr<const Source> source, RowPlan plan)
    : source_(std::move(source)),
      limit_(PieceLimit(source_->threads(), static_cast<int64_t>(source_->options().fields.size()))),
      plan_(std::move(plan)) {
  for (int64_t i = 0; i < source_->threads(); ++i) {
    threads_.emplace_back([this] { Work(); });
    pthread_setname_np(threads_.back().native_handle(), "lockstep-data");
  }
}

Decoder::~Decoder() {
  Cancel();
  for (std::thread& thread : threads_) thread.join();
}

void Decoder::Cancel() {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  if (error_.ok()) error_ = Cancelled("reading was cancelled");
  work_.notify_all();
  ready_.notify_all();
}

Result<std::shared_ptr<const Piece>> Decoder::Next() {
  std::unique_lock lock(mutex_);
  while (true) {
    if (!error_.ok()) return error_;
    if (!tasks_.empty()) {
      const std::shared_ptr<Task> task = tasks_.front();
      if (!task->error.ok()) {
        error_ = task->error;
        stopped_ = true;
        work_.notify_all();
        return error_;
      }
      if (task->done == source_->options().fields.size()) {
        tasks_.pop_front();
        work_.notify_all();
        if (task->wanted) return std::shared_ptr<const Piece>(task->piece);
        continue;
      }
    } else if (plan_ended_) {
      return std::shared_ptr<const Piece>();
    }
    ready_.wait(lock);
  }
}

void Decoder::Work() {
  std::unique_lock lock(mutex_);
  while (!stopped_) {
    size_t column = 0;
    const std::shared_ptr<Task> task = Claim(&column);
    if (task == nullptr) {
      if (!ScheduleNext()) work_.wait(lock);
      continue;
    }
    lock.unlock();
    Status status = Decode(*task, column);
    lock.lock();
    ++task->group->decoded[column];
    if (task->error.ok()) task->error = std::move(status);
    ++task->done;
    if (task->done == source_->options().fields.size() || !task->error.ok()) ready_.notify_all();
    // The column's next piece can be claimed now, by someone who found nothing before.
    work_.notify_one();
  }
}

// The first column, in the order of the pieces, that is not being decoded and whose piece before has been decoded.
std::shared_ptr<Decoder::Task> Decoder::Claim(size_t* column) {
  const size_t columns = source_->options().fields.size();
  for (const std::shared_ptr<Task>& task : tasks_) {
    // Behind an error there is nothing to be gained.
    if (!task->error.ok()) return nullptr;
    if (task->claimed == columns || task->group->decoded[task->claimed] != task->index) continue;
    *column = task->claimed++;
    return task;
  }
  return nullptr;
}

// Schedules the next piece of the plan's ranges. False where there is no room or no more range.
bool Decoder::ScheduleNext() {
  if (plan_ended_ || static_cast<int64_t>(tasks_.size()) >= limit_) return false;
  if (!range_) range_ = plan_.Next();
  if (!range_) {
    plan_ended_ = true;
    ready_.notify_all();
    return false;
  }
  const RowRange& range = *range_;
  const auto key = std::make_pair(range.file, range.group);
  std::shared_ptr<Group>& group = groups_[key];
  if (group == nullptr) group = NewGroup(range);
  // Ranges that begin in the piece where the one before ended need no new piece.
  if (group->scheduled <= (range.first + range.rows - 1) / group->piece_rows) {
    tasks_.push_back(NewTask(group, group->scheduled >= range.first / group->piece_rows));
    ++group->scheduled;
  }
  if (group->scheduled > (range.first + range.rows - 1) / group->piece_rows) {
    if (range.last_of_group) groups_.erase(key);
    range_.reset();
  }
  work_.notify_all();
  return true;
}

std::shared_ptr<Decoder::Group> Decoder::NewGroup(const RowRange& range) const {
  const Source::File& file = source_->files()[range.file];
  const size_t columns = source_->options().fields.size();
  auto group = std::make_shared<Group>();
  group->file = range.file;
  group->index = range.group;
  group->rows = file.group_rows[range.group];
  group->piece_rows = file.piece_rows;
  group->streams.resize(columns);
  group->decoded.resize(columns);
  return group;
}

std::shared_ptr<Decoder::Task> Decoder::NewTask(const std::shared_ptr<Group>& group, bool wanted) const {
  auto piece = std::make_shared<Piece>();
  piece->file = group->file;
  piece->group = group->index;
  piece->first = group->scheduled * group->piece_rows;
  piece->rows = std::min(group->piece_rows, group->rows - piece->first);
  piece->columns.resize(group->decoded.size());
  auto task = std::make_shared<Task>();
  task->group = group;
  task->index = group->scheduled;
  task->wanted = wanted;
  task->piece = std::move(piece);
  return task;
}

Status Decoder::Decode(Task& task, size_t column) {
  Group& group = *task.group;
  std::unique_ptr<ColumnStream>& stream = group.streams[column];
  if (stream == nullptr) {
    LOCKSTEP_ASSIGN_OR_RETURN(std::shared_ptr<ParquetFile> file, OpenFile(group.file));
    LOCKSTEP_ASSIGN_OR_RETURN(stream, file->OpenColumn(group.index, source_->options().fields[column]));
  }
  if (!task.wanted) return stream->Skip(task.piece->rows);
  LOCKSTEP_ASSIGN_OR_RETURN(task.piece->columns[column], stream->Read(task.piece->rows));
  // The column chunk's compressed bytes are not needed any more.
  if (task.piece->first + task.piece->rows == group.rows) stream.reset();
  return OkStatus();
}

Result<std::shared_ptr<ParquetFile>> Decoder::OpenFile(int index) {
  std::lock_guard lock(files_mutex_);
  std::shared_ptr<ParquetFile> file = files_[index].lock();
  if (file == nullptr) {
    const Source::File& known = source_->files()[index];
    LOCKSTEP_ASSIGN_OR_RETURN(file, ParquetFile::Open(known.path, known.piece_rows));
    if (file->group_rows() != known.group_rows) {
      return FailedPrecondition("file '" + known.path + "' has changed since its footer was first read");
    }
    LOCKSTEP_RETURN_IF_ERROR(file->Check(source_->options().fields));
    files_[index] = file;
    last_file_ = file;
  }
  return file;
}

}  // namespace lockstep::columnar
