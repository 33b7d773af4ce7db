#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep {

// Why a call failed. The names and meanings are those of absl::StatusCode, so that the one converter to TensorFlow
// (tf/bridge) is a switch and callers can classify by code, never by text.
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

std::string_view StatusCodeName(StatusCode code);

// The outcome of a call that can fail: OK, or a code with a message that says who, got and wanted.
// Cheap to move; thread-compatible.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // The same code with `prefix` before the message: how an outer layer says where it happened.
  Status WithPrefix(std::string_view prefix) const;

  // "OK" or "UNAVAILABLE: rank 1 ...".
  std::string ToString() const;

  friend bool operator==(const Status&, const Status&) = default;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

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
Status ErrnoStatus(std::string_view what, int error_number);

// A value or the Status that says why there is none. Using the value of a failed Result is a bug and ends the process.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

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

// Leaves the calling function with the status where it is not OK.
#define LOCKSTEP_RETURN_IF_ERROR(expr)                        \
  do {                                                        \
    if (::lockstep::Status _status = (expr); !_status.ok()) { \
      return _status;                                         \
    }                                                         \
  } while (false)

// Declares `lhs` as the value of a Result, or leaves the calling function with its status.
#define LOCKSTEP_ASSIGN_OR_RETURN(lhs, expr) \
  LOCKSTEP_ASSIGN_OR_RETURN_INNER(LOCKSTEP_CONCAT(_result_, __LINE__), lhs, expr)
#define LOCKSTEP_ASSIGN_OR_RETURN_INNER(result, lhs, expr) \
  auto result = (expr);                                    \
  if (!result.ok()) {                                      \
    return result.status();                                \
  }                                                        \
  lhs = *std::move(result)
