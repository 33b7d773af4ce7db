#include "core/comm/options.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "core/base/strings.h"

namespace lockstep {
namespace {

// The allowed values of ContextOptions::backend: a choice by the hosts of the ranks, or one backend for everything.
constexpr std::array<std::string_view, 3> kBackends = {"auto", "shm", "gloo"};

// It is sent in the notes of the rendezvous.
constexpr size_t kMaxPurposeBytes = 200;

template <typename T>
Status Refuse(std::string_view field, const T& got, std::string_view wanted) {
  return InvalidArgument(StrCat("context option ", field, " is ", got, ", wanted ", wanted));
}

}  // namespace

Status ContextOptions::Validate() const {
  if (std::find(kBackends.begin(), kBackends.end(), backend) == kBackends.end()) {
    return Refuse("backend", StrCat("'", backend, "'"),
                  StrCat("one that is built in: ", JoinWithAnd(std::vector(kBackends.begin(), kBackends.end()))));
  }
  const int most = backend == "shm" ? kMaxRanksPerHost : kMaxRanksPerJob;
  if (size < 1 || size > most) {
    return Refuse("size", size, StrCat("1 to ", most, " ranks for backend '", backend, "'"));
  }
  if (rank < 0 || rank >= size) return Refuse("rank", rank, StrCat("0 to ", size - 1));
  if (size > 1 && rendezvous.empty()) return Refuse("rendezvous", "empty", "host:port of rank 0");
  if (size > 1 && secret.empty()) return Refuse("secret", "empty", "the secret of the job");
  // This form also refuses NaN.
  if (!(rendezvous_timeout_s > 0)) return Refuse("rendezvous_timeout_s", rendezvous_timeout_s, "more than 0 s");
  if (!(stall_timeout_s > 0)) return Refuse("stall_timeout_s", stall_timeout_s, "more than 0 s");
  if (stopped_timeout_s && !(*stopped_timeout_s > 0)) {
    return Refuse("stopped_timeout_s", *stopped_timeout_s, "more than 0 s, or no limit");
  }
  if (!(silence_timeout_s > 0)) return Refuse("silence_timeout_s", silence_timeout_s, "more than 0 s");
  if (end_after_loss_s && !(*end_after_loss_s > 0)) {
    return Refuse("end_after_loss_s", *end_after_loss_s, "more than 0 s, or never");
  }
  constexpr int64_t kMost = int64_t{1} << 40;
  if (shared_bytes_per_rank < 0 || shared_bytes_per_rank > kMost) {
    return Refuse("shared_bytes_per_rank", shared_bytes_per_rank, StrCat("0 to ", kMost));
  }
  if (purpose.size() > kMaxPurposeBytes || purpose.find('\n') != std::string::npos) {
    return Refuse("purpose", StrCat("'", purpose, "'"), StrCat("one line of at most ", kMaxPurposeBytes, " bytes"));
  }
  return OkStatus();
}

}  // namespace lockstep
