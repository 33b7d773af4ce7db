#include "core/telemetry/telemetry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "core/base/strings.h"
#include "core/telemetry/clock.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class TelemetryTest : public ::testing::Test {
 protected:
  TelemetryTest() {
    std::string name = (std::filesystem::temp_directory_path() / "telemetry_XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~TelemetryTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(int rank) const { return StrCat(folder_, "/rank-", rank, "-", getpid(), ".json"); }
  std::string Text(int rank) const {
    std::ostringstream text;
    text << std::ifstream(Path(rank)).rdbuf();
    return text.str();
  }
  void Start(Telemetry& telemetry, int rank = 0, int size = 2) const {
    Result<std::unique_ptr<TraceFile>> file = telemetry.OpenTimeline(folder_, rank);
    ASSERT_TRUE(file.ok()) << file.status().ToString();
    ASSERT_TRUE(telemetry.StartTimeline(*std::move(file), {rank, size, 0xabcd}).ok());
  }

  std::string folder_;
};

int64_t CountOf(const std::string& text, const std::string& part) {
  int64_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TraceEvent Collective(int lane, int64_t number, int64_t begin_ns, int64_t end_ns) {
  TraceEvent event;
  event.kind = TraceEvent::Kind::kCollective;
  event.lane = lane;
  event.what = "allreduce";
  event.number = number;
  event.begin_ns = begin_ns;
  event.end_ns = end_ns;
  event.first = 400;
  event.second = 500;
  event.SetName("grad");
  return event;
}

TEST_F(TelemetryTest, CountsOfAllLanesAndTablesAreInTheJson) {
  Telemetry telemetry;
  const auto ordered = telemetry.OpenLane("ordered", 1, 2);
  ordered->AddCall(400, 500);
  ordered->AddCall(8, 0);
  ordered->AddExchange(1000);
  ordered->AddWait(0, 10, 30);
  ordered->AddWait(std::nullopt, 50, 5);
  telemetry.CloseLane(*ordered);
  TableCounters& user = telemetry.Table("user \"x\"");
  user.AddLookup(1000, 312);
  user.AddLookup(24);
  user.AddServed(40);
  user.AddInserted(3);
  user.SetSize(17, 68);
  telemetry.EndStep();
  telemetry.EndStep();
  const std::string json = telemetry.Json();
  EXPECT_THAT(json, HasSubstr("\"steps\":2,"));
  EXPECT_THAT(json, HasSubstr("{\"lane\":\"ordered\",\"rank\":1,\"size\":2,\"collectives\":2,\"sent_bytes\":408,"
                              "\"received_bytes\":500,\"exchange_ns\":1000,\"wait_ns\":35,\"waited_for_ns\":[30,0]}"));
  EXPECT_THAT(json, HasSubstr("{\"name\":\"user \\\"x\\\"\",\"lookups\":2,\"ids\":1024,\"compared_ids\":1000,"
                              "\"distinct_ids\":312,\"served_rows\":40,\"inserted_keys\":3,\"rows\":17,\"bytes\":68}"));
}

TEST_F(TelemetryTest, TheLongestWaitOfACallNamesTheLateRank) {
  LaneCounters lane("ordered", 0, 3);
  lane.AddWait(1, 100, 7);
  lane.AddWait(2, 107, 90);
  const LaneCounters::Waits waits = lane.TakeWaits();
  EXPECT_EQ(waits.begin_ns, 100);
  EXPECT_EQ(waits.ns, 97);
  EXPECT_EQ(waits.late, 2);
  EXPECT_EQ(lane.TakeWaits().ns, 0);
}

TEST_F(TelemetryTest, AFileHasTheEventsTheRowsAndTheEnd) {
  Telemetry telemetry;
  const auto lane = telemetry.OpenLane("ordered", 0, 2);
  Start(telemetry);
  EXPECT_TRUE(telemetry.recording());
  TraceEvent event = Collective(telemetry.LaneNumber(*lane), 1, 12'345'678, 12'400'000);
  event.late = 1;
  event.wait_begin_ns = 12'350'000;
  event.wait_ns = 40'000;
  telemetry.Record(event);
  TraceEvent lookup;
  lookup.kind = TraceEvent::Kind::kLookup;
  lookup.begin_ns = 1000;
  lookup.end_ns = 2000;
  lookup.first = 26;
  lookup.second = 11;
  lookup.SetName("us\"er");
  telemetry.Record(lookup);
  telemetry.Record(lookup);  // at the same time: in a row of its own
  telemetry.CloseLane(*lane);
  EXPECT_FALSE(telemetry.recording());
  const std::string text = Text(0);
  EXPECT_THAT(text, HasSubstr("[\n{\"ph\":\"M\",\"name\":\"lockstep\",\"pid\":0,\"tid\":0,\"args\":{\"format\":1,"
                              "\"rank\":0,\"size\":2,\"job\":\"000000000000abcd\",\"process\":"));
  EXPECT_THAT(text, HasSubstr("\"args\":{\"name\":\"collectives: ordered\"}}"));
  EXPECT_THAT(text, HasSubstr(",\n{\"ph\":\"X\",\"name\":\"allreduce grad\",\"cat\":\"collective\",\"pid\":0,\"tid\":1,"
                              "\"ts\":12345.678,\"dur\":54.322,\"args\":{\"number\":1,\"sent_bytes\":400,"
                              "\"received_bytes\":500,\"wait_us\":40.000,\"late\":1}}"));
  EXPECT_THAT(text, HasSubstr("{\"ph\":\"X\",\"name\":\"wait for rank 1\",\"cat\":\"wait\",\"pid\":0,\"tid\":1,"
                              "\"ts\":12350.000,\"dur\":40.000,\"args\":{}}"));
  EXPECT_THAT(text, HasSubstr("\"tid\":100,\"ts\":1.000,\"dur\":1.000,\"args\":{\"table\":\"us\\\"er\",\"ids\":26,"
                              "\"distinct_ids\":11}}"));
  EXPECT_THAT(text, HasSubstr("\"tid\":101,\"ts\":1.000"));
  EXPECT_THAT(text, HasSubstr("{\"ph\":\"M\",\"name\":\"lockstep_end\",\"pid\":0,\"tid\":0,\"args\":{\"events\":3,"
                              "\"dropped\":0,\"full\":false}}\n]\n"));
}

TEST_F(TelemetryTest, TheTimelineLastsAsLongAsAnyLane) {
  Telemetry telemetry;
  const auto ordered = telemetry.OpenLane("ordered", 0, 2);
  Start(telemetry);
  const auto named = telemetry.OpenLane("named lane", 0, 2);
  // A second lane asks for the timeline as well, and must not begin the file again.
  const Result<std::unique_ptr<TraceFile>> file = telemetry.OpenTimeline(folder_, 0);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(*file, nullptr);
  telemetry.CloseLane(*ordered);
  EXPECT_TRUE(telemetry.recording());
  telemetry.Record(Collective(telemetry.LaneNumber(*named), 1, 5, 6));
  telemetry.CloseLane(*named);
  EXPECT_THAT(Text(0), HasSubstr("collectives: named lane"));
  EXPECT_THAT(Text(0), HasSubstr("\"tid\":2,\"ts\":0.005"));
}

TEST_F(TelemetryTest, ASecondJobOfAProcessHasAFileOfItsOwn) {
  Telemetry telemetry;
  for (int job = 1; job <= 3; ++job) {
    const auto lane = telemetry.OpenLane("named lane", 0, 2);
    Start(telemetry);
    telemetry.Record(Collective(telemetry.LaneNumber(*lane), job, 5, 6));
    telemetry.CloseLane(*lane);
  }
  EXPECT_THAT(Text(0), HasSubstr("\"number\":1,"));
  std::ostringstream third;
  third << std::ifstream(StrCat(folder_, "/rank-0-", getpid(), "-3.json")).rdbuf();
  EXPECT_THAT(third.str(), HasSubstr("\"number\":3,"));
  EXPECT_THAT(third.str(), HasSubstr("lockstep_end"));
}

TEST_F(TelemetryTest, AStepLastsFromTheEndOfTheStepBefore) {
  Telemetry telemetry;
  const auto lane = telemetry.OpenLane("ordered", 0, 1);
  Start(telemetry, 0, 1);
  for (int i = 0; i < 3; ++i) telemetry.EndStep();
  telemetry.CloseLane(*lane);
  EXPECT_EQ(CountOf(Text(0), "\"cat\":\"step\""), 2);
  EXPECT_THAT(Text(0), HasSubstr("\"args\":{\"step\":2}}"));
  EXPECT_THAT(Text(0), Not(HasSubstr("\"args\":{\"step\":1}}")));
}

// The sanitizers watch this.
TEST_F(TelemetryTest, ThreadsRecordAndReadAtTheSameTime) {
  constexpr int kThreads = 4, kEach = 2000;
  Telemetry telemetry;
  const auto lane = telemetry.OpenLane("ordered", 0, 2);
  Start(telemetry);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      TableCounters& table = telemetry.Table(StrCat("table ", t % 2));
      for (int i = 0; i < kEach; ++i) {
        table.AddLookup(10, 5);
        telemetry.Record(Collective(1, i, SteadyNs(), SteadyNs()));
        if (i % 100 == 0) (void)telemetry.Json();
      }
    });
  }
  // The lane's one thread.
  for (int i = 0; i < kEach; ++i) lane->AddCall(1, 2);
  for (std::thread& thread : threads) thread.join();
  telemetry.CloseLane(*lane);
  EXPECT_EQ(CountOf(Text(0), "\"cat\":\"collective\""), kThreads * kEach);
  EXPECT_EQ(lane->sent_bytes(), kEach);
  EXPECT_EQ(telemetry.Table("table 0").ids() + telemetry.Table("table 1").ids(), kThreads * kEach * 10);
}

TEST_F(TelemetryTest, AKilledProcessLeavesWhatWasFlushed) {
  const pid_t child = fork();
  if (child == 0) {
    Telemetry telemetry;
    const auto lane = telemetry.OpenLane("ordered", 3, 4);
    Start(telemetry, 3, 4);
    telemetry.Record(Collective(1, 1, 5, 6));
    // The writer writes five times per second.
    while (CountOf(Text(3), "\"cat\":\"collective\"") == 0) usleep(10'000);
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  std::ostringstream text;
  text << std::ifstream(StrCat(folder_, "/rank-3-", child, ".json")).rdbuf();
  EXPECT_THAT(text.str(), HasSubstr("\"rank\":3"));
  EXPECT_THAT(text.str(), HasSubstr("allreduce grad"));
  EXPECT_THAT(text.str(), Not(HasSubstr("lockstep_end")));
}

// A fork has the objects but not the thread that writes: it must neither wait for it nor for its locks.
TEST_F(TelemetryTest, AForkRecordsNothingAndEnds) {
  auto telemetry = std::make_unique<Telemetry>();
  const auto lane = telemetry->OpenLane("ordered", 0, 2);
  Start(*telemetry);
  telemetry->Record(Collective(1, 1, 5, 6));
  // Then the writer waits for more.
  while (CountOf(Text(0), "\"cat\":\"collective\"") == 0) usleep(10'000);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // ends a child that hangs
    telemetry->Record(Collective(1, 2, 7, 8));
    telemetry->CloseLane(*lane);
    telemetry.reset();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  telemetry->CloseLane(*lane);
  EXPECT_EQ(CountOf(Text(0), "\"cat\":\"collective\""), 1);
  EXPECT_EQ(CountOf(Text(0), "lockstep_end"), 1);
}

TEST_F(TelemetryTest, LongNamesAreCutBetweenCharacters) {
  TraceEvent event;
  event.SetName(std::string(200, 'x'));
  EXPECT_EQ(std::string(event.name), std::string(TraceEvent::kMostName, 'x'));
  // Characters of two bytes, of which the last one would be cut in half.
  std::string umlauts;
  for (int i = 0; i < 100; ++i) umlauts += "\xc3\xa4";
  event.SetName(umlauts);
  EXPECT_EQ(std::string(event.name), umlauts.substr(0, TraceEvent::kMostName - 1));
  event.SetName("\xc3\xa4");
  EXPECT_EQ(std::string(event.name), "\xc3\xa4");
}

TEST_F(TelemetryTest, AFullFileEndsAndSaysSo) {
  Result<std::unique_ptr<TraceFile>> file = TraceFile::Create(folder_, 0, 2000);
  ASSERT_TRUE(file.ok());
  (*file)->WriteHeader({0, 2, 1});
  for (int i = 0; i < 100; ++i) (*file)->Write(Collective(1, i, i, i + 1));
  EXPECT_TRUE((*file)->full());
  (*file)->WriteEnd(7);
  EXPECT_LT(std::filesystem::file_size(Path(0)), 2500u);
  EXPECT_THAT(Text(0), HasSubstr("\"dropped\":7,\"full\":true}}\n]\n"));
}

TEST_F(TelemetryTest, AFolderThatCannotBeMadeIsNamed) {
  Telemetry telemetry;
  const std::string blocked = folder_ + "/file";
  std::ofstream(blocked) << "x";
  const Status status = telemetry.OpenTimeline(blocked + "/traces", 0).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("timeline: folder " + blocked + "/traces cannot be made: "));
}

}  // namespace
}  // namespace lockstep
