#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "core/base/parallel.h"
#include "core/base/status.h"
#include "core/sharding/placement.h"
#include "core/sharding/row_moment.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf/bridge/copies.h"

namespace lockstep {

// A variable's value at one moment, read later and piece by piece, while training changes the variable.
//
// It shares the variable's memory and takes it out of "copy on read" mode. So TensorFlow's own operations, which find
// that the memory has another owner, copy all of it before they change it or give the variable new memory: the moment
// keeps the old one. Lockstep's sparse updates know of moments. They change rows in place, and have only those copied
// aside that were not read yet (BeforeChange). A moment costs no time itself.
//
// Thread-safe, but for reads: one thread reads.
class VariableMoment {
 public:
  // Begins a moment of a variable that has no other one. FAILED_PRECONDITION if it is not initialized.
  static Result<std::shared_ptr<VariableMoment>> Begin(tensorflow::core::RefCountPtr<tensorflow::Var> variable);
  // Does the same, and copies a variable at once that changes as a whole: TensorFlow's operations take much longer for
  // it. A large one is not copied, as it may be a table. `memory` belongs to the caller, who keeps it for the
  // variable's next moment. RESOURCE_EXHAUSTED if there is no memory for the copy.
  static Result<std::shared_ptr<VariableMoment>> BeginOfAny(tensorflow::core::RefCountPtr<tensorflow::Var> variable,
                                                            const ParallelFor& parallel, CopyMemory* memory);
  ~VariableMoment();
  VariableMoment(const VariableMoment&) = delete;
  VariableMoment& operator=(const VariableMoment&) = delete;

  // Copies rows of a variable aside if a moment has not read them. Called before they are changed in place, with the
  // variable's mutex held exclusively. Returns false if the variable's memory has other owners as well, or no moment:
  // then the caller does what TensorFlow's operations do.
  static bool BeforeChange(tensorflow::Var* variable, std::span<const uint32_t> rows);

  tensorflow::DataType dtype() const { return dtype_; }
  const tensorflow::TensorShape& shape() const { return shape_; }
  // Returns the bytes of a row: of a scalar, all.
  int64_t row_bytes() const { return row_bytes_; }

  // Writes rows of the moment to `out`, [rows.count(), row_bytes]. A scalar is one row. Each row is read at most once;
  // not for types that are not plain memory.
  void Read(RowRange rows, char* out);
  // Does the same for rows that will be read again.
  void Peek(RowRange rows, char* out);
  // Returns the whole value; no row was read before. For plain types it is a copy.
  tensorflow::Tensor ReadAll();
  // Gives the memory back: the variable owns it alone again, and its changes need no copies. No more reads follow.
  void End();

 private:
  VariableMoment(tensorflow::core::RefCountPtr<tensorflow::Var> variable, tensorflow::Tensor value, bool owned);

  // Calls read(part) for parts of the rows, each with the variable's mutex held for a short time.
  template <typename ReadPart>
  void InParts(RowRange rows, const ReadPart& read);

  const tensorflow::core::RefCountPtr<tensorflow::Var> variable_;  // null if the moment has a copy
  const tensorflow::DataType dtype_;
  const tensorflow::TensorShape shape_;
  const int64_t row_bytes_;
  // Whether the variable was the only owner of its memory. If not (a program's array, a read), rows are not changed in
  // place.
  const bool owned_;
  tensorflow::Tensor value_;       // guarded by the variable's mutex
  std::optional<RowMoment> rows_;  // guarded by the variable's mutex; no value for types that are not plain memory
};

}  // namespace lockstep
