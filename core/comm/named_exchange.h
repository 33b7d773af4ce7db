#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/comm/communicator.h"
#include "core/comm/sequencer.h"

namespace lockstep {

// What a rank brings to a request, and wants of it.
struct NamedWork {
  NamedRequest request;
  // The rank's tensor, of the request's type and shape. Read until `done`.
  const void* in = nullptr;
  // Gives the memory for the result, of the request's type and this shape; may be null where that has no elements, and
  // may be the memory of `in` in an all-reduce or broadcast. Called at most once, on the lane's thread; never for
  // barriers and joins. Where it fails, this rank gets that error, and the others their results.
  std::function<Result<void*>(std::span<const int64_t> shape)> allocate;
  struct Outcome {
    // Of an all-to-all: rows that came from each rank, [R].
    std::vector<int64_t> received;
    // Of a join: the rank that joined last.
    int last_joined = -1;
  };
  // The end of the request; called once, on the lane's thread or in Submit.
  std::function<void(const Status& status, const Outcome& outcome)> done;
};

// Does what a batch says, by the collectives of a communicator: small tensors of a batch are packed one behind the
// other and travel in one exchange. Every rank runs the same batches in the same order. For one thread.
class NamedExchange {
 public:
  explicit NamedExchange(Communicator& communicator) : communicator_(communicator) {}

  // works: this rank's, for each entry of the batch; null where it has joined and brings zeros. Calls `done` of all.
  // The returned error is one of the communicator: then it is broken. The batch has no error.
  Status Run(const NamedBatch& batch, std::span<NamedWork* const> works);

 private:
  // One entry, as this rank sees it.
  struct Part {
    const NamedBatch::Entry& entry;
    NamedWork* work;  // null: joined
    char* out = nullptr;
    Status status;  // of this rank alone
    NamedWork::Outcome outcome;
    std::vector<char> sink;  // where a result goes that nobody wants
  };

  // Where the part's result of `shape` goes: the work's memory, or the sink.
  static void AllocateOut(Part& part, std::span<const int64_t> shape);
  // Parts that go together; the kinds of it follow.
  Status Exchange(std::span<Part> parts);
  Status AllReduce(std::span<Part> parts);
  Status Adasum(std::span<Part> parts);
  Status ReduceScatter(std::span<Part> parts);
  Status Gather(std::span<Part> parts);
  Status Broadcast(std::span<Part> parts);
  // At least so many bytes that are kept for the next time, in shared memory where there is room.
  char* Scratch(int64_t bytes);

  Communicator& communicator_;
  std::string name_;  // of the batch that runs
  std::shared_ptr<SharedBuffer> shared_;
  std::vector<char> private_;
};

}  // namespace lockstep
