#pragma once

#include <arrow/array.h>
#include <arrow/chunked_array.h>
#include <arrow/io/interfaces.h>
#include <arrow/result.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/columnar/arrow_convert.h"
#include "core/columnar/parquet_file.h"

// What the formats have in common that Arrow reads. For parquet_file.cc and orc_file.cc alone.
namespace lockstep::columnar {

// Runs `call`, which returns our Status or Result, and turns what Arrow or the standard library throws into a Status.
template <typename Call>
auto Guard(const std::string& who, const Call& call) -> decltype(call()) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return ResourceExhausted(who + ": out of memory");
  } catch (const std::exception& error) {
    return DataLoss(who + ": " + error.what());
  }
}

// How messages name a file and a column of it.
inline std::string FileText(const std::string& path) { return "file '" + path + "'"; }
inline std::string ColumnText(const std::string& path, const std::string& name) {
  return FileText(path) + " column '" + name + "'";
}

// Rows that are decoded at once only to get past them. Bounds the memory; kMostPieceRows in source.cc is as many.
inline constexpr int64_t kSkipRows = 65536;

// A column that Arrow decodes: what it hands out by whatever reader, counted and converted.
class ArrowStream : public ColumnStream {
 public:
  // A run of row numbers of the file: the stream's rows from `begin` on are the file's from `file_row` on.
  struct Rows {
    int64_t begin;
    int64_t file_row;
  };

  // The next rows of the column, at most as many as asked for; null or none at the end. Owns the reader.
  using NextRows = std::function<arrow::Result<std::shared_ptr<arrow::ChunkedArray>>(int64_t rows)>;

  ArrowStream(std::string who, Field field, std::vector<Rows> rows, NextRows next)
      : who_(std::move(who)), field_(std::move(field)), rows_(std::move(rows)), next_(std::move(next)) {}

  Result<Column> Read(int64_t rows) override {
    std::vector<Column> parts;
    const auto convert = [&](std::shared_ptr<arrow::Array> array) -> Status {
      auto column = ColumnFromArrow(std::move(array), field_, [&](int64_t i) { return FileRow(position_ + i); });
      if (!column.ok()) return column.status().WithPrefix(who_ + ": ");
      parts.push_back(*std::move(column));
      return OkStatus();
    };
    LOCKSTEP_RETURN_IF_ERROR(Take(rows, rows, convert));
    return parts.size() == 1 ? std::move(parts[0]) : Concatenate(parts);
  }

  Status Skip(int64_t rows) override {
    return Take(rows, kSkipRows, [](const std::shared_ptr<arrow::Array>&) { return OkStatus(); });
  }

 private:
  // Hands the next `rows` rows to `use`, in one or more arrays of `at_once` rows at most. Arrow gives several chunks
  // where a column's strings are more than 2 GB. An end before the footer's number of rows is a damaged file; without
  // the check for it the loop would never end.
  template <typename Use>
  Status Take(int64_t rows, int64_t at_once, const Use& use) {
    return Guard(who_, [&]() -> Status {
      while (rows > 0) {
        const auto next = next_(std::min(rows, at_once));
        if (!next.ok()) return FromArrow(next.status()).WithPrefix(who_ + ": ");
        const std::shared_ptr<arrow::ChunkedArray>& chunks = *next;
        if (chunks == nullptr || chunks->length() == 0 || chunks->length() > rows) {
          return DataLoss(who_ + ": the data ends at row " + std::to_string(FileRow(position_)) + " of the file, " +
                          std::to_string(rows) + " rows before what the footer says");
        }
        for (const std::shared_ptr<arrow::Array>& array : chunks->chunks()) {
          if (array->length() == 0) continue;
          LOCKSTEP_RETURN_IF_ERROR(use(array));
          rows -= array->length();
          position_ += array->length();
        }
      }
      return OkStatus();
    });
  }

  // The row's number in the file. Row groups without rows begin where the next one does: the last of those that begin
  // at or before the position is meant.
  int64_t FileRow(int64_t position) const {
    auto next = std::upper_bound(rows_.begin(), rows_.end(), position,
                                 [](int64_t value, const Rows& run) { return value < run.begin; });
    return (next - 1)->file_row + position - (next - 1)->begin;
  }

  const std::string who_;
  const Field field_;
  const std::vector<Rows> rows_;  // for each row group
  const NextRows next_;
  int64_t position_ = 0;  // rows read
};

// Where each of the row groups begins, in a run of them and in the file.
inline std::vector<ArrowStream::Rows> RowsOf(const std::vector<int>& groups, const std::vector<int64_t>& group_rows) {
  std::vector<ArrowStream::Rows> rows;
  int64_t begin = 0;
  for (int group : groups) {
    rows.push_back({begin, std::accumulate(group_rows.begin(), group_rows.begin() + group, int64_t{0})});
    begin += group_rows[group];
  }
  return rows;
}

// A column that a file lacks: rows of the field's default, without end.
std::unique_ptr<ColumnStream> NewDefaultStream(const Field& field);

// An ORC file, of which ParquetFile::Open has seen that it is one.
Result<std::shared_ptr<ParquetFile>> OpenOrc(const std::string& path,
                                             std::shared_ptr<arrow::io::RandomAccessFile> file);

}  // namespace lockstep::columnar
