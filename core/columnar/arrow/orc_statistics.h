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

// The statistics of an ORC file. ORC has no checksums, so they are the only way to detect a flipped bit. For each
// column of each stripe, a writer counts the values that are not null, and records:
//   integers, dates       least, greatest; of integers their sum
//   floating point        least, greatest, sum
//   booleans              number of true values
//   strings, binary       the sum of their lengths
// The elements of lists are a column of their own. (The format also has numbers of elements, which ORC's C++ library
// writes wrongly.) A sum reveals every single flipped bit of an integer. It reveals none inside a string, and none of a
// floating-point number that is smaller than the rounding of the sum.
//
// Statistics are compared only where all writers agree about them:
// - A count of 0 says nothing. A writer without a row index leaves all statistics of a stripe empty (ORC's Java
// library).
// - A sum of floating-point numbers says nothing, except from ORC's C++ library. The Java library adds a value that
//   repeats only once.
// - Statistics that a writer left out are not compared.
//
// Arrow decodes stripes without their statistics, which lie between the last stripe and the footer:
//   stripes... | statistics of stripes | footer | postscript | length of the postscript (1 byte)
// https://orc.apache.org/specification/ORCv1. Immutable and thread-safe.
class OrcStatistics {
 public:
  // Reads the statistics of `file`. `tail` is the result of Arrow's GetSerializedFileTail: postscript and footer as a
  // message. DATA_LOSS if the statistics are damaged or do not match the number of stripes. A file may have none.
  static Result<std::shared_ptr<const OrcStatistics>> Read(const std::string& tail, int64_t stripes,
                                                           arrow::io::RandomAccessFile& file);

  // Returns DATA_LOSS if `values`, all values of top-level column number `column` in a stripe, differ from the
  // statistics. The message names the statistic and both values.
  Status Check(int64_t stripe, int column, const arrow::Array& values) const;

 private:
  // A column as the footer describes it. Columns of all depths are numbered in their order; 0 is the row itself.
  struct Type {
    uint64_t kind = 0;
    std::vector<uint64_t> children;
  };

  // The statistics of a column in a stripe, with the file's values.
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
  // Does the same as Check for a column of any depth, by its number.
  Status CheckColumn(int64_t stripe, uint64_t id, const arrow::Array& values) const;
  static Status CheckIntegers(const Column& wanted, const arrow::Array& values);
  Status CheckDoubles(const Column& wanted, const arrow::Array& values) const;
  Status CheckElements(int64_t stripe, uint64_t id, const arrow::Array& values) const;

  std::vector<Type> types_;
  bool has_double_sums_ = false;              // whether the writer adds all floating-point numbers
  std::vector<std::vector<Column>> stripes_;  // by stripe and column; empty if the file has none
};

}  // namespace lockstep::columnar
