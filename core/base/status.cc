#include "core/base/status.h"

#include <cstring>

// The names are spelled as TensorFlow spells its codes: describe_parquet passes them to Python, which looks them up
// there.

namespace lockstep {

std::string_view StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return "OK";
    case StatusCode::kCancelled: return "CANCELLED";
    case StatusCode::kInvalidArgument: return "INVALID_ARGUMENT";
    case StatusCode::kDeadlineExceeded: return "DEADLINE_EXCEEDED";
    case StatusCode::kNotFound: return "NOT_FOUND";
    case StatusCode::kResourceExhausted: return "RESOURCE_EXHAUSTED";
    case StatusCode::kFailedPrecondition: return "FAILED_PRECONDITION";
    case StatusCode::kAborted: return "ABORTED";
    case StatusCode::kOutOfRange: return "OUT_OF_RANGE";
    case StatusCode::kUnimplemented: return "UNIMPLEMENTED";
    case StatusCode::kInternal: return "INTERNAL";
    case StatusCode::kUnavailable: return "UNAVAILABLE";
    case StatusCode::kDataLoss: return "DATA_LOSS";
  }
  // This return is behind the switch, not a default in it, so that the compiler warns of a code without a name. A
  // number from a peer that is not a valid code ends here.
  return "UNKNOWN";
}

Status Status::WithPrefix(std::string_view prefix) const {
  if (ok()) return *this;
  return Status(code_, std::string(prefix) + message_);
}

std::string Status::ToString() const {
  if (ok()) return "OK";
  return std::string(StatusCodeName(code_)) + ": " + message_;
}

Status Cancelled(std::string message) { return {StatusCode::kCancelled, std::move(message)}; }
Status InvalidArgument(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }
Status DeadlineExceeded(std::string message) { return {StatusCode::kDeadlineExceeded, std::move(message)}; }
Status NotFound(std::string message) { return {StatusCode::kNotFound, std::move(message)}; }
Status ResourceExhausted(std::string message) { return {StatusCode::kResourceExhausted, std::move(message)}; }
Status FailedPrecondition(std::string message) { return {StatusCode::kFailedPrecondition, std::move(message)}; }
Status Aborted(std::string message) { return {StatusCode::kAborted, std::move(message)}; }
Status OutOfRange(std::string message) { return {StatusCode::kOutOfRange, std::move(message)}; }
Status Unimplemented(std::string message) { return {StatusCode::kUnimplemented, std::move(message)}; }
Status Internal(std::string message) { return {StatusCode::kInternal, std::move(message)}; }
Status Unavailable(std::string message) { return {StatusCode::kUnavailable, std::move(message)}; }
Status DataLoss(std::string message) { return {StatusCode::kDataLoss, std::move(message)}; }

Status ErrnoStatus(std::string_view what, int error_number) {
  return Internal(std::string(what) + ": " + std::strerror(error_number));
}

}  // namespace lockstep
