// Promise of this file (security.md): counts and sizes of a lying rank are an error that names it, before anything is
// allocated.

#include "core/comm/collective/arrivals.h"

#include <memory>
#include <string>
#include <vector>

#include "core/comm/collective/adasum.h"
#include "core/fuzzing/fuzz.h"
#include "core/testing/scripted_communicator.h"

// The messages of a faulty peer in a gathering of numbers, as a save makes it, and in an Adasum. The first byte selects
// the reader; the rest is what the peer sends (scripted_communicator.h).

namespace lockstep::fuzzing {
namespace {

using testing::ScriptedCommunicator;

constexpr uint32_t kReaders = 3;

Status Read(Communicator& communicator, uint32_t reader) {
  const std::vector<int64_t> counts = {3, 5000};
  const auto in = std::make_unique<float[]>(5003);
  const auto out = std::make_unique<float[]>(5003);
  switch (reader) {
    case 0: {
      const std::vector<SharedNumber> numbers = {{"links", 7, 1, INT64_MAX}, {"rows", 3, 0, 10}, {"flags", 1, 0, 1}};
      const Result<std::vector<int64_t>> got = GatherNumbers(communicator, "save", numbers);
      for (size_t i = 0; got.ok() && i < got->size(); ++i) {
        Require((*got)[i] >= numbers[i % 3].least && (*got)[i] <= numbers[i % 3].most, "numbers in their limits");
      }
      return got.status();
    }
    case 1: return AdasumAllReduce(communicator, "sum", DType::kFloat32, counts, in.get(), out.get());
    default: return AdasumAllReduce(communicator, "sum", DType::kFloat16, counts, in.get(), out.get());
  }
}

std::string Words(std::vector<int64_t> numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(int64_t)};
}

}  // namespace

std::vector<std::string> Seeds() {
  const auto message = [](std::string_view bytes) { return ScriptedCommunicator::Message(bytes); };
  // An adasum: this rank's share of the peer's list; the products of the peer's block; the peer's result.
  const std::string share(4 * 4099, '\1'), products(24, '\1'), result(4 * 904, '\1');
  return {std::string(1, '\0') + message(Words({9, 10, 0})),
          std::string(1, '\1') + message(share) + message(products) + message(result),
          std::string(1, '\2') + message(share.substr(0, 2 * 4099)) + message(products) + message(result)};
}

int Fuzz(const uint8_t* data, size_t size) {
  std::string_view bytes = Bytes(data, size);
  const uint32_t reader = Take(&bytes, kReaders);
  ScriptedCommunicator communicator(bytes);
  const Status status = Read(communicator, reader);
  Require(status.ok() || status.code() == StatusCode::kDataLoss || status.code() == StatusCode::kUnavailable,
          "bytes that nobody sends are a loss of data");
  return 0;
}

}  // namespace lockstep::fuzzing
