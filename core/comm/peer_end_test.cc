#include "core/comm/peer_end.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(PeerEndTest, TheFirstEndOfAPeerCounts) {
  peer_end::Forget();
  EXPECT_EQ(peer_end::Why(), "");
  peer_end::Note(DeadlineExceeded("nothing from rank 1"));
  EXPECT_EQ(peer_end::Why(), "");
  peer_end::Note(Unavailable("rank 1 left the job"));
  peer_end::Note(Unavailable("rank 2 died"));
  EXPECT_EQ(peer_end::Why(), "rank 1 left the job");
  peer_end::Forget();
  EXPECT_EQ(peer_end::Why(), "");
  peer_end::Note(Cancelled("rank 1 aborted the job"));
  EXPECT_EQ(peer_end::Why(), "rank 1 aborted the job");
  peer_end::Forget();
}

}  // namespace
}  // namespace lockstep
