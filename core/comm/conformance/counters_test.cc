#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/collective/communicator.h"
#include "core/comm/job/context.h"
#include "core/testing/job.h"

// The counters and the timeline of whole jobs (comm/collective/call_observer.h), on every backend.
namespace lockstep {
namespace {

class CountersTest : public ::testing::TestWithParam<JobShape> {};

// Checks what a call has added to the counters. Keeps the counters of before.
class Added {
 public:
  explicit Added(Communicator& communicator) : counters_(*communicator.counters()) { Update(); }
  // Returns "" or the difference.
  std::string Is(const std::string& call, int64_t sent, int64_t received) {
    const int64_t collectives = counters_.collectives() - collectives_;
    const int64_t got_sent = counters_.sent_bytes() - sent_;
    const int64_t got_received = counters_.received_bytes() - received_;
    Update();
    if (collectives == 1 && got_sent == sent && got_received == received) return "";
    return StrCat(call, ": ", collectives, " calls, ", got_sent, " and ", got_received, " bytes, wanted 1, ", sent,
                  " and ", received, "; ");
  }

 private:
  void Update() {
    collectives_ = counters_.collectives();
    sent_ = counters_.sent_bytes();
    received_ = counters_.received_bytes();
  }
  LaneCounters& counters_;
  int64_t collectives_ = 0, sent_ = 0, received_ = 0;
};

TEST_P(CountersTest, CountTheBytesOfEachCall) {
  ExpectAllWell(GetParam(), [](Communicator& c) -> std::string {
    const int rank = c.rank(), size = c.size();
    std::string errors = c.counters()->lane() == "ordered" ? "" : StrCat("lane ", c.counters()->lane());
    Added added(c);
    std::vector<float> values(100 * size, 1.0f), out(4096);
    const auto memory = [&](auto) -> Result<void*> { return static_cast<void*>(out.data()); };
    const auto check = [&](const Status& status, const std::string& call, int64_t sent, int64_t received) {
      if (!status.ok()) errors += status.ToString();
      errors += added.Is(call, size > 1 ? sent : 0, size > 1 ? received : 0);
    };
    check(c.AllReduce("sum", ReduceOp::kSum, DType::kFloat32, 100, values.data(), values.data()), "allreduce", 400,
          400);
    // Rank r gets r + 1 elements.
    std::vector<int64_t> counts(size);
    std::iota(counts.begin(), counts.end(), 1);
    const int64_t all = size * (size + 1) / 2;
    check(c.ReduceScatter("scatter", ReduceOp::kSum, DType::kFloat32, counts, values.data(), out.data()),
          "reducescatter", 4 * all, 4 * (rank + 1));
    check(c.Broadcast("weights", size - 1, 24, values.data()), "broadcast", rank == size - 1 ? 24 : 0,
          rank == size - 1 ? 0 : 24);
    // Rank r has r + 1 items of 8 bytes.
    check(c.AllGatherV("gather", {DType::kFloat32, 2}, rank + 1, values.data(), memory), "allgather", 8 * (rank + 1),
          8 * (all - rank - 1));
    // Rank r sends (r + 1) * (p + 1) items to rank p.
    std::vector<int64_t> sends(size);
    for (int peer = 0; peer < size; ++peer) sends[peer] = (rank + 1) * (peer + 1);
    const int64_t own = (rank + 1) * (rank + 1), others = (rank + 1) * all - own;
    check(c.AllToAllV("rows", {DType::kFloat32, 1}, sends, values.data(), memory), "alltoall", 4 * others, 4 * others);
    check(c.Barrier("end"), "barrier", 0, 0);
    return errors;
  });
}

// Every other rank has waited longest for the late one. The late rank sleeps so long that a busy machine does not
// matter.
TEST_P(CountersTest, WaitsNameTheLateRank) {
  const JobShape& shape = GetParam();
  if (shape.size == 1) return;  // nobody to wait for
  const int late = shape.size - 1;
  ExpectAllWell(shape, [=](Communicator& c) -> std::string {
    if (const Status status = c.Barrier("start"); !status.ok()) return status.ToString();
    std::vector<int64_t> before(c.size());
    const LaneCounters& counters = *c.counters();
    for (int rank = 0; rank < c.size(); ++rank) before[rank] = counters.waited_for_ns(rank);
    const int64_t waited_before = counters.wait_ns();
    if (c.rank() == late) std::this_thread::sleep_for(std::chrono::seconds(1));
    if (const Status status = c.Barrier("late"); !status.ok()) return status.ToString();
    if (c.rank() == late) return "";
    const int64_t waited = counters.wait_ns() - waited_before;
    if (waited < 500'000'000) return StrCat("waited for ", waited, " ns");
    // Ranks that are not on the late one's host know only that their leader waited.
    const std::string hosts = shape.hosts;
    const bool knows = hosts.empty() || hosts[c.rank()] == hosts[late];
    int longest = 0;
    for (int rank = 0; rank < c.size(); ++rank) {
      if (counters.waited_for_ns(rank) - before[rank] > counters.waited_for_ns(longest) - before[longest])
        longest = rank;
    }
    return !knows || longest == late ? "" : StrCat("waited longest for rank ", longest);
  });
}

std::string TextOf(const std::string& folder, int rank) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (!entry.path().filename().string().starts_with(StrCat("rank-", rank, "-"))) continue;
    std::ostringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    return text.str();
  }
  return "no file";
}

class TimelineOfJobTest : public CountersTest {
 protected:
  TimelineOfJobTest() {
    std::string name = (std::filesystem::temp_directory_path() / "timeline_XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~TimelineOfJobTest() override { std::filesystem::remove_all(folder_); }
  std::string folder_;
};

TEST_P(TimelineOfJobTest, EachRankRecordsTheSameCalls) {
  const Part part = [](Communicator& c) -> std::string {
    float x = 1;
    for (int i = 0; i < 3; ++i) {
      const Status status = c.AllReduce("x", ReduceOp::kSum, DType::kFloat32, 1, &x, &x);
      if (!status.ok()) return status.ToString();
    }
    return c.Barrier("end").ToString() == "OK" ? "" : "barrier";
  };
  Job job(GetParam(), part, [&](ContextOptions& options) { options.timeline = folder_; });
  job.ExpectSurvivorsWell();
  std::map<std::string, int> jobs;
  for (int rank = 0; rank < GetParam().size; ++rank) {
    const std::string text = TextOf(folder_, rank);
    for (int number = 1; number <= 3; ++number) {
      const int64_t bytes = GetParam().size > 1 ? 4 : 0;
      EXPECT_THAT(text, ::testing::HasSubstr(
                            StrCat("\"number\":", number, ",\"sent_bytes\":", bytes, ",\"received_bytes\":", bytes)));
    }
    EXPECT_THAT(text, ::testing::HasSubstr("\"name\":\"collectives: ordered\""));
    EXPECT_THAT(text, ::testing::HasSubstr("\"name\":\"barrier end\""));
    EXPECT_THAT(text, ::testing::HasSubstr("lockstep_end"));
    const size_t at = text.find("\"job\":\"");
    ASSERT_NE(at, std::string::npos);
    ++jobs[text.substr(at, 24)];
  }
  EXPECT_EQ(jobs.size(), 1u);
}

TEST_P(TimelineOfJobTest, AFileThatOneRankCannotMakeFailsOnAll) {
  const int bad = GetParam().size - 1;
  const std::string blocked = folder_ + "/file";
  std::ofstream(blocked) << "x";
  Job job(GetParam(), [&](const ContextOptions& from) -> std::string {
    ContextOptions options = from;
    options.timeline = options.rank == bad ? blocked + "/traces" : folder_;
    const Status status = Context::Create(options).status();
    const std::string wanted = StrCat("rank ", bad, ": timeline: folder ", blocked, "/traces cannot be made: ");
    return status.code() == StatusCode::kInvalidArgument && status.message().find(wanted) != std::string::npos
               ? ""
               : status.ToString();
  });
  job.ExpectSurvivorsWell();
}

TEST_P(TimelineOfJobTest, ItIsOnForAllRanksOrForNone) {
  if (GetParam().size == 1) return;  // nobody to differ from
  Job job(GetParam(), [&](const ContextOptions& from) -> std::string {
    ContextOptions options = from;
    if (options.rank == 1) options.timeline = folder_;
    const Status status = Context::Create(options).status();
    return status.code() == StatusCode::kFailedPrecondition &&
                   status.message().find("with a timeline") != std::string::npos
               ? ""
               : status.ToString();
  });
  job.ExpectSurvivorsWell();
}

const JobShape kShapes[] = {{"shm", 1}, {"shm", 2}, {"shm", 3}, {"gloo", 2}, {"auto", 3, "aab"}, {"auto", 4, "aabb"}};
INSTANTIATE_TEST_SUITE_P(Jobs, CountersTest, ::testing::ValuesIn(kShapes), JobShapeName);
INSTANTIATE_TEST_SUITE_P(Jobs, TimelineOfJobTest, ::testing::ValuesIn(kShapes), JobShapeName);

}  // namespace
}  // namespace lockstep
