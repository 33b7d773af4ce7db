#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/comm/collective/communicator.h"
#include "core/comm/named/named_batch.h"

namespace lockstep {

// The part of one rank in a request: its data, and where its result goes.
struct NamedWork {
  NamedRequest request;
  // The rank's tensor, of the request's type and shape. It is read until `done` is called.
  const void* in = nullptr;
  // If the tensor is on a device (NamedRequest::on_device): the caller's stream, a device::Stream. `in` is ready when
  // the work that is in the stream now has run. When `done` is called with OK, work that is put into the stream from
  // then on reads the result. The memory of `in` and of the result may be used again in the order of the stream.
  void* stream = nullptr;
  // Returns the memory for the result, of the request's type and this shape. It may be null if the result has no
  // elements. In an all-reduce or broadcast it may be the memory of `in`. Called at most once, by the thread that
  // drives the lane, which may be any caller of Submit; never for barriers and joins. It may ask the lane only for
  // memory. If it fails, this rank gets the error, and the others get their results. If there is also no memory for
  // what the others need from this rank, they get that error with this rank's number.
  std::function<Result<void*>(std::span<const int64_t> shape)> allocate;
  struct Outcome {
    // For an all-to-all: the number of rows that came from each rank, [R].
    std::vector<int64_t> received;
    // The rank that joined last; no value for other kinds than joins, and after an error.
    std::optional<int> last_joined = {};
  };
  // The end of the request. Called once, by the thread that drives the lane or within Submit; for a tensor on a device
  // also by a thread of the lane that sees devices finish. It may submit more requests to lanes, but must not destroy
  // one, and must not wait.
  std::function<void(const Status& status, const Outcome& outcome)> done;
  int64_t submitted_ns = 0;  // set by the lane: SteadyNs
};

// One entry of a batch, as a rank sees it.
struct NamedPart {
  const NamedBatch::Entry& entry;
  NamedWork* work;  // null: joined
  char* out = nullptr;
  Status status = {};  // of this rank alone: it has no memory for the result
  NamedWork::Outcome outcome = {};
  // Whether its result has a destination.
  bool wanted() const { return work != nullptr && status.ok(); }
  // Asks for the memory of the result, of `shape`: sets `out` or `status`.
  void AllocateOut(std::span<const int64_t> shape);
};

// Executes batches with the collectives of a communicator. Small tensors of a batch are packed one after the other and
// share one exchange. Every rank runs the same batches in the same order. For one thread at a time.
class NamedExchange {
 public:
  explicit NamedExchange(Communicator& communicator) : communicator_(communicator) {}

  // works: this rank's, one for each entry of the batch; null if this rank has joined and contributes zeros. Calls
  // `done` of all of them. A returned error comes from the communicator, which is broken then, or says that ranks do
  // different things. The batch must have no error.
  // `cause_of` returns the error that all waiting callers get in its place.
  Status Run(const NamedBatch& batch, std::span<NamedWork* const> works,
             const std::function<Status(const Status&)>& cause_of);

 private:
  using Part = NamedPart;
  // Moves a result to its destination, after the scaling that follows the reduction.
  void Deliver(const Part& part, char* result, int64_t count) const;
  // Exchanges parts together; there is one function for each kind.
  using ExchangeOfKind = Status (NamedExchange::*)(std::span<Part> parts);
  static ExchangeOfKind ExchangeFor(const NamedRequest& request);
  Status AllReduce(std::span<Part> parts);
  Status Adasum(std::span<Part> parts);
  Status ReduceScatter(std::span<Part> parts);
  Status Gather(std::span<Part> parts);
  // Divides what the ranks sent, which is in the order of ranks and then of parts, between the parts' results.
  void Distribute(std::span<const Part> parts, const char* received) const;
  Status Broadcast(std::span<Part> parts);
  Status Barrier(std::span<Part> parts);
  Status Join(std::span<Part> parts);
  // Returns at least so many bytes, which are kept for the next time, in shared memory if there is room. Null without
  // any memory: then DeclineNoMemory takes the place of the exchange, and all ranks get its error.
  char* Scratch(int64_t bytes);
  Status DeclineNoMemory();

  Communicator& communicator_;
  std::string name_;  // the name of the current batch
  std::shared_ptr<SharedBuffer> shared_;
  std::unique_ptr<char[]> private_;
  int64_t private_bytes_ = 0;
};

}  // namespace lockstep
