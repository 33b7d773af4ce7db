#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep {

// Words in the core's headers:
//   thread-safe        any thread may call any method at any time
//   thread-compatible  calls of const methods may run at once; a call that changes the object needs the caller's order
//   R, B, F, L, U, D   ranks, batch, features, ids of a feature, distinct ids, dimension of a row

// The reason of a failed call. The names and meanings are the same as absl::StatusCode's. So the one converter to
// TensorFlow (tf/bridge) is a switch, and callers classify errors by code, never by text. The core uses them for:
//
//   CANCELLED            Abort or Leave, here or on a peer; a reader that is closed
//   INVALID_ARGUMENT     an argument or option that is wrong on any rank and at any time
//   DEADLINE_EXCEEDED    a rank did not come in time, to the rendezvous or to a collective
//   NOT_FOUND            a file, or a name that nothing matches
//   RESOURCE_EXHAUSTED   no memory, address space or descriptors
//   FAILED_PRECONDITION  ranks that differ (calls, settings, secret), or a call at the wrong time
//   UNIMPLEMENTED        a meaningful request that is not supported
//   INTERNAL             a system call that fails without a known reason, or a bug in Lockstep
//   UNAVAILABLE          a peer died, left, is stopped or can't be reached; a file server fails
//   DATA_LOSS            bytes that cannot be what was written
//
// Programs see tf.errors.InternalError for UNAVAILABLE if an operation fails (tf/bridge/convert.cc gives the reason),
// and tf.errors.UnavailableError if a call through the C interface does (lockstep/_src/engine/library.py).
//
// The values follow the order below, and other code relies on them: Python finds its exceptions by them
// (lockstep/_src/engine/library.py), and they travel in the rendezvous' answer and in shared memory. A new code goes to
// the end, and also into Python's list and the bridge.
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

// Returns TensorFlow's name of the code: "INVALID_ARGUMENT", ... The text lives as long as the program.
std::string_view StatusCodeName(StatusCode code);

// The outcome of a call that can fail: OK, or a code with a message that names the place, the given and the wanted
// value. The core throws nothing for failures in operation; checks that end the process are for bugs. The compiler
// warns of a Status that is ignored. Code that drops one on purpose casts it to void and gives the reason beside it.
// ```cpp
// Status Load(...) {
//   if (rows < 0) return InvalidArgument(StrCat("table '", name, "': ", rows, " rows, wanted 0 or more"));
//   LOCKSTEP_RETURN_IF_ERROR(Open(path));                    // leaves with Open's error
//   LOCKSTEP_ASSIGN_OR_RETURN(const int64_t size, SizeOf(path));  // or has the value
//   return OkStatus();
// }
// ```
// A Status owns its message: a copy copies the text, a move is cheap, and OK allocates nothing. Thread-compatible.
class [[nodiscard]] Status {
 public:
  // OK.
  Status() = default;
  // An error. Use OkStatus() for OK: a Status of kOk with a message would differ from it.
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // Returns the same code with `prefix` before the message, by which an outer layer says where it happened ("rank 2:
  // "). OK stays OK.
  Status WithPrefix(std::string_view prefix) const;

  // "OK" or "UNAVAILABLE: rank 1 ...".
  std::string ToString() const;

  // Equal in code and text: for tests, and for ranks that compare their results.
  friend bool operator==(const Status&, const Status&) = default;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

// One function per code.
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

// Returns an INTERNAL error with the text of `error_number` (errno) after `what`: "mmap of 4096 bytes: Cannot allocate
// memory". It is for failures without a better code; a caller that knows one (no memory, no peer) returns that. Save
// errno before anything can change it, which includes building `what`.
Status ErrnoStatus(std::string_view what, int error_number);

// A value, or the Status that says why there is none. Owns the value; T is any movable type, including smart pointers.
// Using the value of a failed Result is a bug: it throws std::bad_optional_access, which is never caught and ends the
// process. Thread-compatible.
//
// Both constructors are implicit, so that functions return either. Never make a Result of an OK Status: it would be
// neither a value nor an error, and LOCKSTEP_ASSIGN_OR_RETURN would return "OK" without a value.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return value_.has_value(); }
  // OK if there is a value.
  const Status& status() const { return status_; }

  // Returns the value. An expiring Result (*std::move(result) or *Function()) moves it out, which works for types that
  // cannot be copied.
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

// Returns the status from the calling function unless it is OK. For functions that return a Status or any Result.
#define LOCKSTEP_RETURN_IF_ERROR(expr)                        \
  do {                                                        \
    if (::lockstep::Status _status = (expr); !_status.ok()) { \
      return _status;                                         \
    }                                                         \
  } while (false)

// Declares `lhs` as the value of a Result, or returns the error from the calling function. `lhs` is a new variable with
// its type, or an existing one. The macro expands to three statements: never use it as the unbraced body of an `if`,
// and only once per line (its hidden variable is named after the line). A comma outside of parentheses ends `lhs`: give
// a type like std::map<int, int> an alias first.
#define LOCKSTEP_ASSIGN_OR_RETURN(lhs, expr) \
  LOCKSTEP_ASSIGN_OR_RETURN_INNER(LOCKSTEP_CONCAT(_result_, __LINE__), lhs, expr)
// NOLINTBEGIN(bugprone-macro-parentheses): a declaration cannot stand in parentheses.
#define LOCKSTEP_ASSIGN_OR_RETURN_INNER(result, lhs, expr) \
  auto result = (expr);                                    \
  if (!result.ok()) {                                      \
    return result.status();                                \
  }                                                        \
  lhs = *std::move(result)
// NOLINTEND(bugprone-macro-parentheses)
