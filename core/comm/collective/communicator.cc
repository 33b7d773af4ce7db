#include "core/comm/collective/communicator.h"

#include <numeric>
#include <string>
#include <utility>

namespace lockstep {

std::string_view ReduceOpName(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return "sum";
    case ReduceOp::kMean: return "mean";
    case ReduceOp::kMin: return "min";
    case ReduceOp::kMax: return "max";
    case ReduceOp::kProduct: return "product";
  }
  return "unknown";
}

Result<std::vector<int64_t>> Communicator::Compare(const Call&, std::span<const int64_t>) {
  return Unimplemented(std::string("communicators of kind '") + std::string(backend()) +
                       "' cannot compare the calls of others");
}

void Communicator::ObserveCalls(std::shared_ptr<Telemetry> telemetry, std::string_view lane) {
  observer_.emplace(std::move(telemetry), lane, rank(), size());
  CountWaits(&observer_->counters());
}

// Captures one pointer, which std::function holds without an allocation.
Allocate Communicator::ReceivedBytes::Counting() {
  return [this](std::span<const int64_t> counts) {
    bytes_ = (std::accumulate(counts.begin(), counts.end(), int64_t{0}) - counts[rank_]) * item_.bytes();
    return allocate_(counts);
  };
}

}  // namespace lockstep
