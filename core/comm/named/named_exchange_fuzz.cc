#include "core/comm/named/named_exchange.h"

#include <memory>
#include <string>
#include <vector>

#include "core/fuzzing/fuzz.h"
#include "core/testing/scripted_communicator.h"

// The data of a faulty peer in named gathers and all-to-alls, after rank 0 has told all ranks the sizes. The first byte
// selects the kind and the number of tensors; the rest is what the peer sends (scripted_communicator.h).

namespace lockstep::fuzzing {
namespace {

using testing::ScriptedCommunicator;

// This rank has two rows of two floats for each tensor, the peer three.
NamedBatch BatchOf(NamedKind kind, size_t tensors) {
  NamedBatch batch;
  for (size_t i = 0; i < tensors; ++i) {
    NamedBatch::Entry entry;
    entry.request.kind = kind;
    entry.request.name = "x" + std::to_string(i);
    entry.request.shape = {2, 2};
    entry.tickets = {1, 1};
    entry.rows = {2, 3};
    if (kind == NamedKind::kAllToAll) entry.splits = {{1, 1}, {2, 1}};
    batch.entries.push_back(std::move(entry));
  }
  return batch;
}

}  // namespace

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (const int tensors : {1, 2}) {
    const auto from_peer = [&](int rows) {
      return ScriptedCommunicator::Message(std::string(static_cast<size_t>(rows * tensors) * 2 * sizeof(float), '\1'));
    };
    seeds.push_back(std::string(1, static_cast<char>(2 * tensors - 2)) + from_peer(3));
    seeds.push_back(std::string(1, static_cast<char>(2 * tensors - 1)) + from_peer(2));
  }
  return seeds;
}

int Fuzz(const uint8_t* data, size_t size) {
  std::string_view bytes = Bytes(data, size);
  const uint32_t which = Take(&bytes, 4);
  const size_t tensors = 1 + which / 2;
  const NamedBatch batch = BatchOf(which % 2 == 0 ? NamedKind::kAllGather : NamedKind::kAllToAll, tensors);
  const std::vector<float> in(4, 1);
  std::vector<std::unique_ptr<float[]>> out;
  std::vector<NamedWork> works(tensors);
  std::vector<NamedWork*> pointers;
  size_t done = 0;
  for (size_t i = 0; i < tensors; ++i) {
    NamedWork& work = works[i];
    work.request = batch.entries[i].request;
    work.in = in.data();
    work.allocate = [&](std::span<const int64_t> shape) -> Result<void*> {
      Require(shape.size() == 2 && shape[0] == (which % 2 == 0 ? 5 : 3) && shape[1] == 2, "rank 0's size");
      out.push_back(std::make_unique<float[]>(static_cast<size_t>(shape[0] * shape[1])));
      return static_cast<void*>(out.back().get());
    };
    work.done = [&](const Status&, const NamedWork::Outcome&) { ++done; };
    pointers.push_back(&work);
  }
  ScriptedCommunicator communicator(bytes);
  NamedExchange exchange(communicator);
  const Status status = exchange.Run(batch, pointers, [](const Status& cause) { return cause; });
  Require(done == tensors, "each request ends once");
  Require(status.ok() || status.code() == StatusCode::kDataLoss || status.code() == StatusCode::kUnavailable,
          "other sizes than rank 0's are a loss of data");
  return 0;
}

}  // namespace lockstep::fuzzing
