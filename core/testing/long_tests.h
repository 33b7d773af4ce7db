#pragma once

#include <cstdlib>

namespace lockstep::testing {

// Returns whether tests take all of their cases. `make test` leaves some out that take long; with LOCKSTEP_LONG_TESTS
// set, as `make test-long` does, they run as well.
inline bool RunsLongTests() { return std::getenv("LOCKSTEP_LONG_TESTS") != nullptr; }

}  // namespace lockstep::testing
