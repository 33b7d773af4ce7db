#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep {

// Words that the headers of the core use:
//   thread-safe        any thread may call any method at any time
//   thread-compatible  calls of const methods may run at once; a call that changes the object needs the caller's order
//   R, B, F, L, U, D   ranks, batch, features, ids of a feature, distinct ids, dimension of a row

// Why a call failed. The names and meanings are those of absl::StatusCode, so that the one converter to TensorFlow
// (tf/bridge) is a switch and callers can classify by code, never by text. What they are used for here:
//
//   CANCELLED            Abort or Leave, here or on a peer; a reader that is closed
//   INVALID_ARGUMENT     an argument or option that can't be right, whatever the others do
//   DEADLINE_EXCEEDED    a rank did not come in time, to the rendezvous or to a collective
//   NOT_FOUND            a file, or a name that nothing matches
//   RESOURCE_EXHAUSTED   no memory, address space or descriptors
//   FAILED_PRECONDITION  ranks that differ (calls, settings, secret), or a call at the wrong time
//   UNIMPLEMENTED        meaningful, and not supported
//   INTERNAL             a system call that fails without a good reason, or a broken promise inside
//   UNAVAILABLE          a peer died, left or can't be reached
//   DATA_LOSS            bytes that cannot be what was written
//
// The values are the order below, and others know them: Python finds its exceptions by them (_src/engine/library.py),
// and they travel in the rendezvous' answer and in shared memory. A new one goes to the end, and into Python's list and
// the bridge.
enum class StatusCode {
  kOk = 0,
  kCancelled,
  kInvalidArgument,
  kDeadlineExceeded,
  kNotFound,
  kResourceExhausted,
  kFailedPrecondition,
  kAborted,
  kOutOfRange,
  kUnimplemented,
  kInternal,
  kUnavailable,
  kDataLoss,
};

// "INVALID_ARGUMENT", ...: the names of TensorFlow's error codes. The text lives as long as the program.
std::string_view StatusCodeName(StatusCode code);

// The outcome of a call that can fail: OK, or a code with a message that says who, got and wanted. Nothing in the core
// throws for what can go wrong in operation; checks that end the process are for bugs. The compiler warns of a Status
// that nobody looks at; one that may be dropped is cast to void, with a reason beside it.
//
//   Status Load(...) {
//     if (rows < 0) return InvalidArgument(StrCat("table '", name, "': ", rows, " rows, wanted 0 or more"));
//     LOCKSTEP_RETURN_IF_ERROR(Open(path));                    // leaves with Open's error
//     LOCKSTEP_ASSIGN_OR_RETURN(const int64_t size, SizeOf(path));  // or has the value
//     return OkStatus();
//   }
//
// Holds its message itself: a copy copies the text, a move is cheap, and OK allocates nothing. Thread-compatible.
class [[nodiscard]] Status {
 public:
  // OK.
  Status() = default;
  // An error. With kOk it would be an OK that has a message and differs from OkStatus(): use that instead.
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // The same code with `prefix` before the message: how an outer layer says where it happened ("rank 2: "). OK stays
  // OK.
  Status WithPrefix(std::string_view prefix) const;

  // "OK" or "UNAVAILABLE: rank 1 ...".
  std::string ToString() const;

  // Equal in code and text: for tests, and for ranks that compare what they got.
  friend bool operator==(const Status&, const Status&) = default;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

// One maker for each code.
inline Status OkStatus() { return Status(); }
Status Cancelled(std::string message);
Status InvalidArgument(std::string message);
Status DeadlineExceeded(std::string message);
Status NotFound(std::string message);
Status ResourceExhausted(std::string message);
Status FailedPrecondition(std::string message);
Status Aborted(std::string message);
Status OutOfRange(std::string message);
Status Unimplemented(std::string message);
Status Internal(std::string message);
Status Unavailable(std::string message);
Status DataLoss(std::string message);

// Internal error with the text of `error_number` (errno) behind `what`: "mmap of 4096 bytes: Cannot allocate memory".
// For failures that have no better code; a caller that can tell one (no memory, no peer) makes it itself. Take errno
// before anything else can change it, building `what` included.
Status ErrnoStatus(std::string_view what, int error_number);

// A value or the Status that says why there is none. Owns the value; T is any movable type, smart pointers among them.
// Using the value of a failed Result is a bug: std::bad_optional_access, which nobody catches, ends the process.
// Thread-compatible.
//
// Both constructors are implicit, so that functions return either. Of an OK Status no Result may be made: it would be
// neither a value nor an error, and LOCKSTEP_ASSIGN_OR_RETURN would hand on "OK" without a value.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return value_.has_value(); }
  // OK where there is a value.
  const Status& status() const { return status_; }

  // The value; of an expiring Result (*std::move(result), or *Function()) it is moved out, so types that can't be
  // copied work.
  T& operator*() & { return value_.value(); }
  const T& operator*() const& { return value_.value(); }
  T&& operator*() && { return std::move(value_).value(); }
  T* operator->() { return &value_.value(); }
  const T* operator->() const { return &value_.value(); }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace lockstep

#define LOCKSTEP_CONCAT_INNER(a, b) a##b
#define LOCKSTEP_CONCAT(a, b) LOCKSTEP_CONCAT_INNER(a, b)

// Leaves the calling function with the status where it is not OK. For functions that return a Status or any Result.
#define LOCKSTEP_RETURN_IF_ERROR(expr)                        \
  do {                                                        \
    if (::lockstep::Status _status = (expr); !_status.ok()) { \
      return _status;                                         \
    }                                                         \
  } while (false)

// Declares `lhs` as the value of a Result, or leaves the calling function with its status. `lhs` may be a new variable
// with its type, or one that is there. Three statements, not one: never the unbraced body of an `if`, and a line holds
// only one (its hidden variable is named after the line). A comma outside of parentheses ends `lhs`: name a type like
// std::map<int, int> by an alias first.
#define LOCKSTEP_ASSIGN_OR_RETURN(lhs, expr) \
  LOCKSTEP_ASSIGN_OR_RETURN_INNER(LOCKSTEP_CONCAT(_result_, __LINE__), lhs, expr)
// NOLINTBEGIN(bugprone-macro-parentheses): what is declared can't stand in them.
#define LOCKSTEP_ASSIGN_OR_RETURN_INNER(result, lhs, expr) \
  auto result = (expr);                                    \
  if (!result.ok()) {                                      \
    return result.status();                                \
  }                                                        \
  lhs = *std::move(result)
// NOLINTEND(bugprone-macro-parentheses)
