#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace arrow {
class Array;
}  // namespace arrow
namespace arrow::io {
class RandomAccessFile;
}  // namespace arrow::io

namespace lockstep::columnar {

// The statistics of an ORC file, which are all that can tell a flipped bit: ORC has no checksums. A writer counts, for
// each column of each stripe, the values that are not null, and notes
//   integers, dates       least, greatest; of integers their sum
//   floating point        least, greatest, sum
//   booleans              how many are true
//   strings, binary       the sum of their lengths
// The elements of lists are a column of their own. (The format has numbers of elements as well, which ORC's C++ library
// writes wrongly.)
// A sum finds every single flipped bit of an integer. It finds none inside of a string, and of a floating-point number
// none that is less than the rounding of the sum. Nothing is compared with statistics that a writer left out.
//
// Arrow decodes stripes and does not read their statistics, which lie between the last stripe and the footer:
//   stripes... | statistics of stripes | footer | postscript | length of the postscript (1 byte)
// https://orc.apache.org/specification/ORCv1. Immutable and thread-safe.
class OrcStatistics {
 public:
  // Reads the statistics of `file`. `tail` is what Arrow's GetSerializedFileTail returns: postscript and footer as a
  // message. DATA_LOSS where they are damaged or are those of another number of stripes. A file may have none.
  static Result<std::shared_ptr<const OrcStatistics>> Read(const std::string& tail, int64_t stripes,
                                                           arrow::io::RandomAccessFile& file);

  // DATA_LOSS where `values`, all of top-level column number `column` in a stripe, are not what the statistics say:
  // which of them, its value there and that of the values.
  Status Check(int64_t stripe, int column, const arrow::Array& values) const;

 private:
  // A column, as the footer describes it; columns of all depths are numbered as they come, from 0, the row itself.
  struct Type {
    uint64_t kind = 0;
    std::vector<uint64_t> children;
  };

  // The statistics of a column in a stripe. Values as the file has them.
  struct Column {
    std::optional<uint64_t> count;
    std::optional<bool> has_null;
    std::optional<int64_t> least, greatest, sum;  // integers; dates: least and greatest
    std::optional<double> least_double, greatest_double, double_sum;
    std::optional<uint64_t> trues;
    std::optional<int64_t> length;  // of all strings
  };

  Status ReadFooter(std::string_view footer);
  Status ReadStripes(std::string_view metadata);
  static Result<Column> ReadColumn(std::string_view message);
  // As Check, for a column of any depth, by its number.
  Status CheckColumn(int64_t stripe, uint64_t id, const arrow::Array& values) const;
  static Status CheckIntegers(const Column& wanted, const arrow::Array& values);
  static Status CheckDoubles(const Column& wanted, const arrow::Array& values);
  Status CheckElements(int64_t stripe, uint64_t id, const arrow::Array& values) const;

  std::vector<Type> types_;
  std::vector<std::vector<Column>> stripes_;  // of each stripe that of each column; empty where the file has none
};

}  // namespace lockstep::columnar
