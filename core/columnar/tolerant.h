#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/columnar/column/parquet_file.h"
#include "core/columnar/run.h"

namespace lockstep::columnar {

// A stream (ColumnStream, RowSelector) over a run of row groups. If it is tolerant, it survives damage: it refuses a
// part that cannot be read, and opens the stream again after the damaged row group. The damage is located only by
// parts, because a stream only says that it failed. The stream is opened when it is first needed. Thread-compatible.
template <typename Stream>
class TolerantStream {
 public:
  using Open = std::function<Result<std::unique_ptr<Stream>>(const std::vector<int>& groups)>;

  // Starts at row `position` of the run, which must outlive it.
  TolerantStream(const Run* run, int64_t position, bool tolerant, Open open)
      : run_(run), position_(position), tolerant_(tolerant), open_(std::move(open)) {}

  // Reads the next `rows` rows by `read(stream, first, count)`: first all of them at once, and if that fails, the part
  // in each row group. `first` counts from here. If the stream is tolerant, `refuse(first, count, status)` gets what
  // cannot be read.
  template <typename Read, typename Refuse>
  Status Take(int64_t rows, const Read& read, const Refuse& refuse) {
    const int64_t begin = std::exchange(position_, position_ + rows), end = position_;
    if (begin >= broken_until_) {
      const Status status = Part(begin, begin, rows, read);
      if (status.ok() || !tolerant_ || !IsCorruption(status)) return status;
    }
    for (int64_t first = begin; first < end;) {
      const int64_t group_end = GroupEnd(first), count = std::min(group_end, end) - first;
      if (first >= broken_until_) {
        stream_ = nullptr;
        const Status status = Part(begin, first, count, read);
        if (!status.ok() && !IsCorruption(status)) return status;
        if (!status.ok()) {
          broken_until_ = group_end;
          broken_ = status;
        }
      }
      if (first < broken_until_) {
        stream_ = nullptr;
        refuse(first - begin, count, broken_);
      }
      first += count;
    }
    return OkStatus();
  }

  // Passes over the next `rows` rows. A tolerant stream finds damage in them when the rows after them are read.
  Status Skip(int64_t rows) {
    const Status status = stream_ == nullptr ? OkStatus() : stream_->Skip(rows);
    position_ += rows;
    if (status.ok() || !tolerant_ || !IsCorruption(status)) return status;
    stream_ = nullptr;
    return OkStatus();
  }

 private:
  template <typename Read>
  Status Part(int64_t begin, int64_t first, int64_t count, const Read& read) {
    if (stream_ == nullptr) {
      const auto group = std::find_if(run_->groups.begin(), run_->groups.end(), [&](int g) {
        return GroupEnd(run_->begin.at(g)) > first && run_->begin.at(g) <= first;
      });
      LOCKSTEP_ASSIGN_OR_RETURN(stream_, open_({group, run_->groups.end()}));
      LOCKSTEP_RETURN_IF_ERROR(stream_->Skip(first - run_->begin.at(*group)));
    }
    return read(*stream_, first - begin, count);
  }

  // Returns the end of this row's row group, in the run. Row groups without rows begin where they end.
  int64_t GroupEnd(int64_t row) const {
    for (int group : run_->groups) {
      if (run_->begin.at(group) > row) return run_->begin.at(group);
    }
    return run_->rows;
  }

  const Run* const run_;
  int64_t position_;
  const bool tolerant_;
  const Open open_;
  std::unique_ptr<Stream> stream_;  // at position_; null: to be opened there
  int64_t broken_until_ = 0;        // rows before it are not tried again
  Status broken_;
};

}  // namespace lockstep::columnar
