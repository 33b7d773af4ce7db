#include "core/comm/gloo/gloo_communicator.h"

#include <algorithm>
#include <utility>

#include "core/base/strings.h"

namespace lockstep::gloo {

GlooCommunicator::GlooCommunicator(std::unique_ptr<Streams> streams)
    : streams_(std::move(streams)), index_(streams_->index()), size_(streams_->size()), calls_(*streams_) {}

void GlooCommunicator::Flush() {
  constexpr double kFarewell_s = 2;
  if (!streams_->broken()) (void)streams_->Flush(kFarewell_s);  // peers that are gone need nothing any more
}

void GlooCommunicator::Leave(std::string_view) {
  (void)streams_->Break(Cancelled(StrCat("rank ", streams_->ranks()[index_], " has left the job")));
}

Status GlooCommunicator::Agree(const Call& call) {
  LOCKSTEP_RETURN_IF_ERROR(calls_.Begin(call, [](int) { return Calls::Part{}; }));
  return calls_.End();
}

Status GlooCommunicator::Decline(std::string_view name, const Status& why, bool verbatim) {
  if (why.ok()) return InvalidArgument("Decline needs an error that says why");
  return FoldError(calls_.Decline(name, why, verbatim));
}

Status GlooCommunicator::ForPeers(const std::function<Status(int peer)>& work) const {
  for (int i = 1; i < size_; ++i) LOCKSTEP_RETURN_IF_ERROR(work((index_ + i) % size_));
  return OkStatus();
}

GlooCommunicator::Range GlooCommunicator::ShareOf(int rank, int64_t count, int64_t element_bytes) const {
  constexpr int64_t kCacheLineBytes = 64;
  const int64_t line = kCacheLineBytes / element_bytes;
  const int64_t share = ((count + size_ - 1) / size_ + line - 1) / line * line;
  const int64_t begin = std::min(count, rank * share);
  return {begin, std::min(count, begin + share) - begin};
}

}  // namespace lockstep::gloo
