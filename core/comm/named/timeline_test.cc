// Promise of this file (horovod.md): the timeline names tensors and ranks, also of a killed process.

#include "core/comm/named/timeline.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

namespace lockstep {
namespace {

std::string Read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return std::move(text).str();
}

int64_t Count(const std::string& text, const std::string& part) {
  int64_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

NamedRequest Request(const std::string& name, NamedKind kind) {
  NamedRequest request;
  request.name = name;
  request.kind = kind;
  request.shape = {2, 3};
  return request;
}

NamedBatch Batch(std::initializer_list<NamedRequest> requests) {
  NamedBatch batch;
  for (const NamedRequest& request : requests) batch.entries.push_back({request, {}, {}, {}});
  return batch;
}

TEST(Timeline, HasTheWayOfATensor) {
  const std::string path = testing::TempDir() + "timeline.json";
  Timeline timeline;
  const NamedRequest a = Request("a", NamedKind::kAllReduce), b = Request("b\"\n", NamedKind::kAllToAll);
  timeline.Requested(a, 0);  // The timeline is off.
  ASSERT_TRUE(timeline.Start(path, true).ok());
  ASSERT_TRUE(timeline.on());
  timeline.Requested(a, 1);
  timeline.Requested(a, 0);
  timeline.Requested(b, 0);
  timeline.Cycle();
  timeline.Ordered(Batch({a}));
  timeline.Ordered(Batch({b}));
  timeline.Begin(Batch({a}));
  timeline.End(Batch({a}));
  timeline.End(Batch({b}));  // It failed.
  const std::string before = Read(path);
  EXPECT_NE(before.find("EXCHANGE"), std::string::npos) << "of a rank that is killed it is there";
  timeline.Requested(Request("never done", NamedKind::kBarrier), 0);
  ASSERT_TRUE(timeline.Stop().ok());
  const std::string text = Read(path);
  EXPECT_EQ(text.substr(0, 2), "[\n");
  EXPECT_EQ(text.substr(text.size() - 3), "\n]\n");
  EXPECT_NE(text.find("\"args\":{\"name\":\"b\\\"\\u000a\"}"), std::string::npos) << text;
  EXPECT_NE(text.find("\"name\":\"ALLREDUCE\""), std::string::npos);
  EXPECT_NE(text.find("{\"dtype\":\"float32\",\"shape\":\"[2,3]\"}"), std::string::npos) << text;
  EXPECT_EQ(Count(text, "NEGOTIATE_ALLREDUCE"), 2);
  EXPECT_EQ(Count(text, "\"name\":\"QUEUE\""), 2);
  EXPECT_EQ(Count(text, "\"name\":\"EXCHANGE\""), 1);
  EXPECT_EQ(Count(text, "CYCLE_START"), 1);
  EXPECT_EQ(Count(text, "\"ph\":\"X\""), 4);
  // Every part that begins also ends.
  EXPECT_EQ(Count(text, "\"ph\":\"B\""), Count(text, "\"ph\":\"E\""));
  EXPECT_EQ(std::count(text.begin(), text.end(), '{'), std::count(text.begin(), text.end(), '}'));
}

// One row for all numbered calls, and another one only for calls that run at the same time.
TEST(Timeline, HasOneRowForNumberedCalls) {
  const std::string path = testing::TempDir() + "timeline_rows.json";
  Timeline timeline;
  ASSERT_TRUE(timeline.Start(path, false).ok());
  const auto numbered = [](int number) {
    NamedRequest request = Request("allreduce." + std::to_string(number), NamedKind::kAllReduce);
    request.family = "allreduce";
    return request;
  };
  for (int i = 0; i < 100; ++i) {
    timeline.Requested(numbered(i), 0);
    timeline.Ordered(Batch({numbered(i)}));
    timeline.Begin(Batch({numbered(i)}));
    timeline.End(Batch({numbered(i)}));
  }
  for (const int i : {100, 101}) timeline.Requested(numbered(i), 0);
  for (const int i : {100, 101}) timeline.Ordered(Batch({numbered(i)}));
  timeline.End(Batch({numbered(100), numbered(101)}));
  ASSERT_TRUE(timeline.Stop().ok());
  const std::string text = Read(path);
  EXPECT_EQ(Count(text, "process_name"), 2);
  EXPECT_EQ(Count(text, "\"args\":{\"name\":\"allreduce\"}"), 2);
  EXPECT_EQ(Count(text, "\"name\":\"EXCHANGE\""), 100);
  EXPECT_EQ(Count(text, "\"ph\":\"B\""), Count(text, "\"ph\":\"E\""));
}

// It ends in its row, and the next request of its name begins there.
TEST(Timeline, EndsWhatIsRefused) {
  const std::string path = testing::TempDir() + "timeline_refused.json";
  Timeline timeline;
  ASSERT_TRUE(timeline.Start(path, false).ok());
  const NamedRequest a = Request("a", NamedKind::kAllReduce);
  NamedBatch refused = Batch({a});
  refused.error = InvalidArgument("a scalar");
  for (int i = 0; i < 2; ++i) {
    timeline.Requested(a, 0);
    timeline.Ordered(refused);
    if (i == 0) timeline.End(refused);
  }
  timeline.Requested(a, 0);  // Before the end of the one before is seen.
  timeline.End(refused);
  timeline.Ordered(Batch({a}));
  timeline.Begin(Batch({a}));
  timeline.End(Batch({a}));
  const std::string text = Read(path);
  EXPECT_EQ(Count(text, "process_name"), 1);
  EXPECT_EQ(Count(text, "NEGOTIATE_ALLREDUCE"), 4) << text;
  EXPECT_EQ(Count(text, "\"name\":\"EXCHANGE\""), 1);
  EXPECT_EQ(Count(text, "\"ph\":\"B\""), Count(text, "\"ph\":\"E\""));
  ASSERT_TRUE(timeline.Stop().ok());
}

// The parent ends what it has begun.
TEST(Timeline, IsLeftAloneByAFork) {
  const std::string path = testing::TempDir() + "timeline_fork.json";
  Timeline timeline;
  ASSERT_TRUE(timeline.Start(path, false).ok());
  const NamedRequest a = Request("a", NamedKind::kAllReduce);
  timeline.Requested(a, 0);
  const pid_t child = fork();
  if (child == 0) exit(timeline.Stop().ok() ? 0 : 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_TRUE(timeline.Stop().ok());
  EXPECT_EQ(Count(Read(path), "NEGOTIATE_ALLREDUCE"), 1);
}

TEST(Timeline, CanBeginInTheMiddleAndAgain) {
  const std::string path = testing::TempDir() + "timeline_again.json";
  Timeline timeline;
  const NamedRequest a = Request("a", NamedKind::kBroadcast);
  ASSERT_TRUE(timeline.Start(path, false).ok());
  ASSERT_TRUE(timeline.Start(path, false).ok());
  timeline.End(Batch({a}));
  timeline.Begin(Batch({a}));
  timeline.Ordered(Batch({a}));
  timeline.Cycle();
  ASSERT_TRUE(timeline.Stop().ok());
  ASSERT_TRUE(timeline.Stop().ok());
  timeline.Requested(a, 0);
  const std::string text = Read(path);
  EXPECT_EQ(Count(text, "NEGOTIATE"), 0);
  EXPECT_EQ(Count(text, "CYCLE_START"), 0);
  EXPECT_EQ(Count(text, "\"name\":\"BROADCAST\""), 1);
}

TEST(Timeline, SaysWhyItCannotBeWritten) {
  Timeline timeline;
  const Status status = timeline.Start("/nowhere/timeline.json", false);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "timeline /nowhere/timeline.json: No such file or directory");
  ASSERT_TRUE(timeline.Start("/dev/full", false).ok());
  EXPECT_EQ(timeline.Stop().code(), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace lockstep
