#pragma once

#include <optional>
#include <string>

namespace lockstep::testing {

// Where ranks of a test's jobs run. As a rule all of them run here, as forks of the test. But the same test may be
// started on several hosts at the same time (tests/hosts/conformance_test.py does it on emulated ones): then each
// process starts the ranks of its own host, and they meet over the network.
//
//   LOCKSTEP_TEST_SITE=b@10.77.0.1:7000 lockstep_comm_test --gtest_filter='*auto_4_aabb'
//
// has the ranks with the letter b here (JobShape::hosts), which meet the others at that address: with the first of the
// test's jobs at port 7000, with the second at 7001, and so on, as all processes make the same jobs in the same order.
struct Site {
  char host;            // letter of the ranks that run here
  std::string address;  // of rank 0's host
  int port;             // of the first job

  // What the variable says; nothing without it. Aborts where it says something else than the above.
  static const std::optional<Site>& OfThisProcess();
};

// Where rank 0 of a test's next job is met: at the site's next port, or, without a site, at a local port that was free
// a moment ago.
std::string NextMeetingAddress();

}  // namespace lockstep::testing
