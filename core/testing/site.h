#pragma once

#include <optional>
#include <string>

namespace lockstep::testing {

// The place where ranks of a test's jobs run. Usually all of them run here, as forks of the test. But the same test may
// be started on several hosts at once (tests/hosts/conformance_test.py does so on emulated ones). Then each process
// starts the ranks of its own host, and the ranks join over the network.
//
//   LOCKSTEP_TEST_SITE=b@10.77.0.1:7000 lockstep_comm_test --gtest_filter='*auto_4_aabb'
//
// This runs the ranks with the letter b here (JobShape::hosts); the rendezvous with the others is at that address. The
// test's first job uses port 7000, the second 7001, and so on, because all processes make the same jobs in the same
// order.
struct Site {
  char host;            // letter of the ranks that run here
  std::string address;  // of rank 0's host
  int port;             // port of the first job

  // Returns the value of the variable, or nothing without it. Aborts if the value is not of the form above.
  static const std::optional<Site>& OfThisProcess();
};

// Returns the address of the rendezvous of a test's next job: the site's next port or, without a site, a local port
// that was free a moment ago.
std::string NextRendezvousAddress();

}  // namespace lockstep::testing
