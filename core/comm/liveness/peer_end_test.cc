#include "core/comm/liveness/peer_end.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(PeerEndTest, AnErrorTellsOfTheEndOfAPeerWhereItSaysSo) {
  peer_end::Forget();
  EXPECT_EQ(peer_end::In("rank 1 left the job"), "");
  peer_end::Note(DeadlineExceeded("nothing from rank 1"));
  EXPECT_EQ(peer_end::In("nothing from rank 1"), "");
  peer_end::Note(Unavailable("rank 1 left the job"));
  peer_end::Note(Unavailable("rank 1 left the job"));
  peer_end::Note(Cancelled("rank 2 aborted the job"));
  EXPECT_EQ(peer_end::In("allreduce 'x': rank 1 left the job [Op:AllReduce]"), "rank 1 left the job");
  EXPECT_EQ(peer_end::In("rank 2 aborted the job"), "rank 2 aborted the job");
  EXPECT_EQ(peer_end::In("no such column"), "");
  EXPECT_EQ(peer_end::In(""), "");
  peer_end::Forget();
  EXPECT_EQ(peer_end::In("rank 1 left the job"), "");
}

}  // namespace
}  // namespace lockstep
