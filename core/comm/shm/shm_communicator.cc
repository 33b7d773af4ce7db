#include "core/comm/shm/shm_communicator.h"

#include <unistd.h>

#include <utility>

#include "core/comm/collective/arrivals.h"
#include "core/comm/shm/copy.h"

namespace lockstep::shm {

Result<std::unique_ptr<ShmCommunicator>> ShmCommunicator::Create(const ContextOptions& options, Group group) {
  const int index = group.index;
  LOCKSTEP_ASSIGN_OR_RETURN(Attachment attachment, Attach(options, std::move(group)));
  return std::unique_ptr<ShmCommunicator>(
      new ShmCommunicator(std::move(attachment.segment), index, std::move(attachment.waiter)));
}

ShmCommunicator::ShmCommunicator(std::shared_ptr<Segment> segment, int rank, std::unique_ptr<Waiter> waiter)
    : segment_(std::move(segment)),
      rank_(rank),
      size_(segment_->layout().size),
      owner_(getpid()),
      heap_(std::make_shared<Heap>(segment_, rank)),
      waiter_(std::move(waiter)),
      calls_(segment_, rank, *waiter_) {}

// Peers that wait for this rank learn that it left, instead of that it died. Held buffers keep the segment.
ShmCommunicator::~ShmCommunicator() { Leave({}); }

void ShmCommunicator::Leave(std::string_view how) {
  if (getpid() == owner_) waiter_->Leave(how);
}

Status ShmCommunicator::FillSlot(const void* data, int64_t bytes) {
  LOCKSTEP_RETURN_IF_ERROR(calls_.CheckUsable());
  CopyStreaming(segment_->At(segment_->layout().Slot(rank_, calls_.next_parity())), data, bytes);
  return OkStatus();
}

// Makes only the start of a collective.
Status ShmCommunicator::Barrier(std::string_view name) {
  return Observe(CallKind::kBarrier, name, 0, 0,
                 [&]() -> Status { return calls_.Begin({.kind = CallKind::kBarrier, .name = name}, nullptr, 0); });
}

Result<std::vector<int64_t>> ShmCommunicator::Compare(const Call& call, std::span<const int64_t> values) {
  // At least one: an exchange of nothing would have no memory.
  static constexpr int64_t kNothing = 0;
  if (values.empty()) values = std::span(&kNothing, 1);
  std::vector<int64_t> all(size_ * values.size());
  const std::vector<int64_t> one_each(size_, 1);
  const Item item = {DType::kInt64, static_cast<int64_t>(values.size())};
  LOCKSTEP_RETURN_IF_ERROR(Observe(call.kind, call.name, 0, 0, [&] {
    return AllGatherAs(call, item, 1, values.data(), Expecting(call.name, one_each, all.data()));
  }));
  return all;
}

Status ShmCommunicator::Decline(std::string_view name, const Status& why, bool verbatim) {
  if (why.ok()) return InvalidArgument("Decline needs an error that says why");
  return calls_.Decline(name, why, verbatim);
}

}  // namespace lockstep::shm
