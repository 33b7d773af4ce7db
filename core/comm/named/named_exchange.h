#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/comm/collective/communicator.h"
#include "core/comm/named/named_batch.h"

namespace lockstep {

// What a rank brings to a request, and wants of it.
struct NamedWork {
  NamedRequest request;
  // The rank's tensor, of the request's type and shape. Read until `done`.
  const void* in = nullptr;
  // Gives the memory for the result, of the request's type and this shape; may be null where that has no elements, and
  // may be the memory of `in` in an all-reduce or broadcast. Called at most once, by who drives the lane, which may
  // be any caller of Submit; never for barriers and joins. It asks the lane for nothing but memory. Where it fails,
  // this rank gets that error, and the others their results; or, where there is no memory either for what the others
  // need of this rank, that error with this rank's number.
  std::function<Result<void*>(std::span<const int64_t> shape)> allocate;
  struct Outcome {
    // Of an all-to-all: rows that came from each rank, [R].
    std::vector<int64_t> received;
    // Of a join: the rank that joined last.
    int last_joined = -1;
  };
  // The end of the request; called once, by who drives the lane or in Submit. It may ask lanes for more, and must not
  // destroy one.
  std::function<void(const Status& status, const Outcome& outcome)> done;
};

// Does what a batch says, by the collectives of a communicator: small tensors of a batch are packed one behind the
// other and travel in one exchange. Every rank runs the same batches in the same order. For one thread at a time.
class NamedExchange {
 public:
  explicit NamedExchange(Communicator& communicator) : communicator_(communicator) {}

  // works: this rank's, for each entry of the batch; null where it has joined and brings zeros. Calls `done` of all.
  // The returned error is one of the communicator, which is broken then, or of ranks that do different things. The
  // batch has no error.
  // `cause_of`: what to say in its place, to all that wait.
  Status Run(const NamedBatch& batch, std::span<NamedWork* const> works,
             const std::function<Status(const Status&)>& cause_of);

 private:
  // One entry, as this rank sees it.
  struct Part {
    const NamedBatch::Entry& entry;
    NamedWork* work;  // null: joined
    char* out = nullptr;
    Status status;  // of this rank alone: it has no memory for the result
    NamedWork::Outcome outcome;
    // Whether its result has a place to go.
    bool wanted() const { return work != nullptr && status.ok(); }
  };

  // Asks for the memory of the part's result, of `shape`.
  static void AllocateOut(Part& part, std::span<const int64_t> shape);
  // A result, less what is scaled behind the reduction, goes to where it belongs.
  void Deliver(const Part& part, char* result, int64_t count) const;
  // Parts that go together; the kinds of it follow.
  Status Exchange(std::span<Part> parts);
  Status AllReduce(std::span<Part> parts);
  Status Adasum(std::span<Part> parts);
  Status ReduceScatter(std::span<Part> parts);
  Status Gather(std::span<Part> parts);
  Status Broadcast(std::span<Part> parts);
  // At least so many bytes that are kept for the next time, in shared memory where there is room. Null where there is
  // none anywhere: then TellNoMemory takes the place of the exchange, and all ranks get its error.
  char* Scratch(int64_t bytes);
  Status TellNoMemory();

  Communicator& communicator_;
  std::string name_;  // of the batch that runs
  std::shared_ptr<SharedBuffer> shared_;
  std::unique_ptr<char[]> private_;
  int64_t private_bytes_ = 0;
};

}  // namespace lockstep
