#include "core/comm/job/run_agreement.h"

#include "core/fuzzing/fuzz.h"

// The lists of collectives that ranks exchange if their fingerprints differ.

namespace lockstep::fuzzing {

std::vector<std::string> Seeds() {
  using std::string_literals::operator""s;
  return {"a\nb\n\0a\nc\n\0"s, "a\n\0\0"s, "a\n\0a\n\0"s, "\0\0\0"s};
}

int Fuzz(const uint8_t* data, size_t size) {
  std::string_view bytes = Bytes(data, size);
  const int ranks = 1 + static_cast<int>(Take(&bytes, 4));
  Require(!RunAgreement::Disagreement(bytes, ranks).ok(), "it is asked for where ranks differ");
  return 0;
}

}  // namespace lockstep::fuzzing
