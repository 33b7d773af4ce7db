#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "core/base/parallel.h"
#include "core/base/status.h"
#include "core/sharding/placement.h"
#include "core/snapshot/row_snapshot.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf/bridge/copies.h"

namespace lockstep {

// A variable's value as it was when the snapshot began, read later and piece by piece, while training changes the
// variable.
//
// It shares the variable's memory and takes it out of "copy on read" mode. So TensorFlow's own operations, which find
// that the memory has another owner, copy all of it before they change it or give the variable new memory: the snapshot
// keeps the old one. Lockstep's sparse updates know of snapshots. They change rows in place, and have only those copied
// aside that were not read yet (BeforeChange). The begin of a snapshot takes no time.
//
// Thread-safe, but for reads: one thread reads.
class VariableSnapshot {
 public:
  // Begins a snapshot of a variable that has no other one. FAILED_PRECONDITION if it is not initialized.
  // RESOURCE_EXHAUSTED without memory.
  static Result<std::shared_ptr<VariableSnapshot>> Begin(tensorflow::core::RefCountPtr<tensorflow::Var> variable);
  // Does the same, and copies a variable at once that changes as a whole: TensorFlow's operations take much longer for
  // it. A large one is not copied, as it may be a table. `memory` belongs to the caller, who keeps it for the
  // variable's next snapshot. RESOURCE_EXHAUSTED without memory for the copy.
  static Result<std::shared_ptr<VariableSnapshot>> BeginOfAny(tensorflow::core::RefCountPtr<tensorflow::Var> variable,
                                                              const ParallelFor& parallel, CopyMemory* memory);
  ~VariableSnapshot();
  VariableSnapshot(const VariableSnapshot&) = delete;
  VariableSnapshot& operator=(const VariableSnapshot&) = delete;

  // Copies rows of a variable aside if a snapshot has not read them. Called before they are changed in place, with the
  // variable's mutex held exclusively. Returns false if the variable's memory has other owners as well, or no snapshot:
  // then the caller does what TensorFlow's operations do.
  static bool BeforeChange(tensorflow::Var* variable, std::span<const uint32_t> rows);

  tensorflow::DataType dtype() const { return dtype_; }
  const tensorflow::TensorShape& shape() const { return shape_; }
  // Returns the bytes of a row: of a scalar, all.
  int64_t row_bytes() const { return row_bytes_; }

  // Writes rows of the snapshot to `out`, [rows.count(), row_bytes]. A scalar is one row. Each row is read at most
  // once; not for types that are not plain memory.
  void Read(RowRange rows, char* out);
  // Does the same for rows that will be read again.
  void Peek(RowRange rows, char* out);
  // Returns the whole value; no row was read before. For plain types it is a copy.
  tensorflow::Tensor ReadAll();
  // Returns whether all that was read is of the snapshot: RESOURCE_EXHAUSTED if memory was missing to copy a row.
  Status status() const;
  // Gives the memory back: only the variable owns it again, and its changes need no copies. No more reads follow.
  void End();

 private:
  VariableSnapshot(tensorflow::core::RefCountPtr<tensorflow::Var> variable, tensorflow::Tensor value, bool owned,
                   std::unique_ptr<RowSnapshot> rows);

  // Returns a snapshot of the rows; null for types that are not plain memory.
  static Result<std::unique_ptr<RowSnapshot>> BeginRows(const tensorflow::Tensor& value);

  // Calls read(part) for parts of the rows, each with the variable's mutex held for a short time.
  template <typename ReadPart>
  void InParts(RowRange rows, const ReadPart& read);

  const tensorflow::core::RefCountPtr<tensorflow::Var> variable_;  // null if the snapshot has a copy
  const tensorflow::DataType dtype_;
  const tensorflow::TensorShape shape_;
  const int64_t row_bytes_;
  // Whether the variable was the only owner of its memory. If not (a program's array, a read), rows are not changed in
  // place.
  const bool owned_;
  // Both change only with the variable's mutex held exclusively (TensorFlow's, which clang's analysis does not know).
  tensorflow::Tensor value_;
  std::unique_ptr<RowSnapshot> rows_;  // null for types that are not plain memory, and after the end
};

}  // namespace lockstep
