#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/sharding/placement.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/util/tensor_bundle/tensor_bundle.h"

namespace lockstep {

// Reads rows of a tensor in a checkpoint one after another, into the caller's memory. TensorFlow's own reader first
// reads every stored slice that it needs as a whole; a slice may be as large as the table. This one needs no memory
// for rows.
//
// Checksums. TensorFlow stores one for each slice. It is compared when the slice's last byte was read. So the bytes of
// a slice before the first and after the last wanted row are read as well, and dropped.
//
// For one thread; the file outlives it.
class RowsReader {
 public:
  // Prepares to read `rows` of the tensor `name`, [R, ...]. `prefix` is the prefix of `file`. NOT_FOUND if there is no
  // such tensor. INVALID_ARGUMENT if it has another type or shape. DATA_LOSS if some of the rows are in no slice.
  static Result<std::unique_ptr<RowsReader>> Open(tensorflow::BundleReader* file, const std::string& prefix,
                                                  const std::string& name, tensorflow::DataType dtype,
                                                  const tensorflow::TensorShape& shape, RowRange rows);

  // Reads the next `count` rows: `data` is [count, row bytes]. DATA_LOSS for a damaged or shortened file, or an error
  // of reading; they name the file.
  Status Read(int64_t count, char* data) { return Advance(count, data); }
  // Passes over the next `count` rows. Slices that have only such rows are not read, and so not checked.
  Status Skip(int64_t count) { return Advance(count, nullptr); }
  // Reads to the end of the last slice. To be called after the last row.
  Status Finish();

 private:
  // Consecutive rows that were stored together.
  struct Piece {
    RowRange rows;
    int file = 0;
    int64_t offset = 0;     // of its first byte in the file
    uint32_t checksum = 0;  // of its bytes
  };

  RowsReader(std::string name, int64_t row_bytes, int64_t first)
      : name_(std::move(name)), row_bytes_(row_bytes), next_(first) {}

  // Returns the data files' names, and adds the pieces that have any of the rows.
  Status FindPieces(tensorflow::BundleReader* file, const std::string& prefix, const tensorflow::TensorShape& shape,
                    RowRange rows);
  // Reads the next `count` rows, or passes over them if `data` is null.
  Status Advance(int64_t count, char* data);
  // Begins the next piece: reads its rows before the next wanted one.
  Status BeginPiece();
  // Reads the following bytes of the piece; into `data`, or to nowhere if it is null. Compares the checksum after the
  // last byte.
  Status ReadBytes(int64_t bytes, char* data);

  const std::string name_;
  const int64_t row_bytes_;
  int64_t next_;  // the next row to read

  tensorflow::Env* env_ = tensorflow::Env::Default();
  std::vector<std::string> files_;
  std::vector<Piece> pieces_;  // ascending
  size_t piece_ = 0;           // the present one
  bool begun_ = false;         // whether its first byte was read
  int64_t done_ = 0;           // its bytes that were read
  uint32_t checksum_ = 0;      // of these
  int open_file_ = -1;
  std::unique_ptr<tensorflow::RandomAccessFile> file_;
  std::vector<char> dropped_;
};

}  // namespace lockstep
