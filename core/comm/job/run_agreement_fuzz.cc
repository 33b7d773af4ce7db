// Promise of this file (security.md): counts and sizes of a lying rank are an error that names it, before anything is
// allocated.

#include "core/comm/job/run_agreement.h"

#include "core/fuzzing/fuzz.h"
#include "core/testing/scripted_communicator.h"

// The lists of collectives that ranks exchange if their fingerprints differ. The first byte selects the input: the
// lists of some ranks, or what the peer of this rank sends (scripted_communicator.h).

namespace lockstep::fuzzing {
namespace {

using testing::ScriptedCommunicator;

void FuzzExchange(std::string_view script) {
  ScriptedCommunicator communicator(script);
  RunAgreement agreement;
  const std::vector<std::string> operations = {"AllReduce a", "AllReduce b"};
  const Status status = agreement.Reach(communicator, operations);
  Require(status.ok() == agreement.Holds(RunAgreement::Fingerprint(operations)), "it holds once it is reached");
  Require(status.ok() || status.code() == StatusCode::kDataLoss || status.code() == StatusCode::kUnavailable ||
              status.code() == StatusCode::kFailedPrecondition,
          "an error has a reason");
}

}  // namespace

std::vector<std::string> Seeds() {
  using std::string_literals::operator""s;
  const std::string other = ScriptedCommunicator::Message(std::string(8, 'x'));
  return {"\0a\nb\n\0a\nc\n\0"s,
          "\1a\n\0\0"s,
          "\1a\n\0a\n\0"s,
          "\2\0\0\0"s,
          "\4"s + other + ScriptedCommunicator::Message("AllReduce b\n\0"s),
          "\4"s + other + "\xff\xff\0\0\0\0\0\1\0\0"s};
}

int Fuzz(const uint8_t* data, size_t size) {
  std::string_view bytes = Bytes(data, size);
  const uint32_t kind = Take(&bytes, 5);
  if (kind == 4) {
    FuzzExchange(bytes);
  } else {
    const int ranks = 1 + static_cast<int>(kind);
    Require(!RunAgreement::Disagreement(bytes, ranks).ok(), "it is asked for where ranks differ");
  }
  return 0;
}

}  // namespace lockstep::fuzzing
