#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "core/comm/named/test_lane.h"
#include "core/telemetry/telemetry.h"

namespace lockstep {
namespace {

class NamedLaneCountersTest : public ::testing::TestWithParam<JobShape> {};

// Requests wait for the last rank before there is any exchange. That rank is named, also on ranks of other hosts.
TEST_P(NamedLaneCountersTest, ARequestWaitsForTheRankThatAsksLast) {
  const int late = GetParam().size - 1;
  RunThreads(GetParam(), [&](ContextOptions context) {
    const auto telemetry = std::make_shared<Telemetry>();
    context.telemetry = telemetry;
    auto lane = CreateLane(context);
    ASSERT_TRUE(lane.ok()) << lane.status().ToString();
    const auto counters = telemetry->Lane("named lane");
    ASSERT_NE(counters, nullptr);
    ASSERT_TRUE(Await(**lane, Barrier("start")).ok());
    const int64_t before = counters->waited_for_ns(late);
    if (context.rank == late) std::this_thread::sleep_for(std::chrono::seconds(1));
    NamedRequest request = Request(NamedKind::kAllReduce, "grad", {100});
    request.dtype = DType::kFloat32;
    const std::vector<float> in(100, 1);
    const int64_t sent = counters->sent_bytes(), received = counters->received_bytes();
    ASSERT_TRUE(Ask(**lane, request, in).get().status.ok());
    EXPECT_EQ(counters->sent_bytes() - sent, 400);
    EXPECT_EQ(counters->received_bytes() - received, 400);
    if (context.rank != late) {
      EXPECT_GT(counters->waited_for_ns(late) - before, 500'000'000);
    } else {
      EXPECT_EQ(counters->waited_for_ns(late), 0);
    }
    EXPECT_TRUE(Await(**lane, Barrier("end of the test")).ok());
  });
}

// A rank's own file has the wait and the exchange of a request, as the files of the ordered lane do.
TEST_P(NamedLaneCountersTest, TheTimelineHasTheWaitForTheLastRank) {
  std::string folder = (std::filesystem::temp_directory_path() / "named_timeline_XXXXXX").string();
  folder = mkdtemp(folder.data());
  const int late = GetParam().size - 1;
  RunThreads(GetParam(), [&](ContextOptions context) {
    context.timeline = folder + "/" + std::to_string(context.rank);
    auto lane = CreateLane(context);
    ASSERT_TRUE(lane.ok()) << lane.status().ToString();
    ASSERT_TRUE(Await(**lane, Barrier("start")).ok());
    if (context.rank == late) std::this_thread::sleep_for(std::chrono::seconds(1));
    EXPECT_TRUE(Await(**lane, Barrier("epoch")).ok());
  });
  for (const int rank : GetParam().RanksHere()) {
    if (rank == late) continue;
    std::ostringstream text;
    for (const auto& entry : std::filesystem::directory_iterator(folder + "/" + std::to_string(rank))) {
      text << std::ifstream(entry.path()).rdbuf();
    }
    EXPECT_NE(text.str().find("barrier epoch"), std::string::npos) << text.str();
    EXPECT_NE(text.str().find("wait for rank " + std::to_string(late)), std::string::npos) << text.str();
  }
  std::filesystem::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(Jobs, NamedLaneCountersTest, ::testing::ValuesIn(LanesOfSeveral()), JobShapeName);

}  // namespace
}  // namespace lockstep
