// Lanes whose peer sends invalid or false messages. The peer has proven that it knows the job's secret. So it may end
// the lane, with an error that names it, but not the process.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/job/create_communicator.h"
#include "core/comm/named/control_links.h"
#include "core/comm/named/named_lane.h"
#include "core/comm/named/named_messages.h"
#include "core/testing/job.h"

namespace lockstep {
namespace {

constexpr double kPatience_s = 60;

// The forged peer's message, after it has received the request of the other's lane (nothing if that is rank 0, which
// sends none).
using ForgedMessage = std::function<std::string(std::string_view heard)>;

NamedRequest Sum(std::vector<int64_t> shape) {
  NamedRequest request;
  request.kind = NamedKind::kAllReduce;
  request.name = "sum";
  request.shape = std::move(shape);
  return request;
}

// The result of a sum of four numbers that a lane requests. The other one of the two ranks, `forged_peer`, is not a
// lane.
Status RunWithForgedPeer(int forged_peer, const ForgedMessage& forged) {
  const std::string address = testing::FreeLocalAddress();
  std::promise<Status> outcome;
  std::future<Status> ended = outcome.get_future();
  std::promise<void> judged;
  std::thread other([&, may_go = judged.get_future().share()] {
    ContextOptions options = JobOptions({"shm", 2}, address, forged_peer);
    options.purpose = "named lane";  // as lanes have it
    auto communicator = CreateCommunicator(options);
    ASSERT_TRUE(communicator.ok()) << communicator.status().ToString();
    std::vector<std::optional<int>> sockets(2);
    sockets[1 - forged_peer] = (*communicator)->Link(1 - forged_peer);
    ControlLinks links(sockets);
    std::string heard;
    if (forged_peer == 0) {
      for (const auto& event : links.Await(kPatience_s)) heard = event.message;
    }
    links.Send(1 - forged_peer, forged(heard));
    EXPECT_TRUE(links.Push(kPatience_s));
    may_go.wait();
  });
  {
    auto lane = NamedLane::Create(JobOptions({"shm", 2}, address, 1 - forged_peer), {});
    EXPECT_TRUE(lane.ok()) << lane.status().ToString();
    const std::vector<float> in(4, 1);
    std::vector<float> out(4);
    NamedWork work;
    work.request = Sum({4});
    work.in = in.data();
    work.allocate = [&](std::span<const int64_t>) -> Result<void*> { return static_cast<void*>(out.data()); };
    work.done = [&](const Status& status, const NamedWork::Outcome&) { outcome.set_value(status); };
    if (lane.ok()) (*lane)->Submit(std::move(work));
    EXPECT_EQ(ended.wait_for(std::chrono::duration<double>(kPatience_s)), std::future_status::ready);
    judged.set_value();
  }
  other.join();
  return ended.get();
}

std::string Requests(const std::vector<NamedRequest>& requests) { return named_messages::OfRequests(requests).front(); }

TEST(NamedLaneHostile, RankZeroSurvivesWhatIsNoRequest) {
  NamedRequest member = Sum({4});
  member.name = "member";
  member.group = "g";
  member.group_size = 3;
  NamedRequest huge = Sum({int64_t{1} << 40, int64_t{1} << 40});
  for (const std::string& message :
       {std::string(), std::string("?"), std::string("b\1\0\0\0", 5), Requests({Sum({4})}).substr(0, 20),
        Requests({huge}), Requests({member, member})}) {
    const Status status = RunWithForgedPeer(1, [&](std::string_view) { return message; });
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.ToString();
    EXPECT_NE(status.message().find("rank 1 sent a message to rank 0 that cannot be read"), std::string::npos)
        << status.ToString();
  }
}

// A request that a rank's own lane would have refused fails here, with its name, on all ranks.
TEST(NamedLaneHostile, RankZeroRefusesRequestsThatCannotBeRight) {
  NamedRequest wrong = Sum({4});
  wrong.kind = NamedKind::kBroadcast;
  wrong.root = 7;
  const Status status = RunWithForgedPeer(1, [&](std::string_view) { return Requests({wrong}); });
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("rank 1: broadcast 'sum': root is 7"), std::string::npos) << status.ToString();
}

// Rank 0 decides how much of the rank's memory is read and written, but never more than the rank gave.
TEST(NamedLaneHostile, ARankDoesOnlyWhatItHasAskedFor) {
  const std::vector<std::function<void(NamedRequest&)>> lies = {
      [](NamedRequest& request) { request.shape = {1 << 20}; },
      [](NamedRequest& request) {
        request.shape = {4, 1};
      },
      [](NamedRequest& request) { request.dtype = DType::kFloat64; },
      [](NamedRequest& request) { request.kind = NamedKind::kBroadcast; },
      [](NamedRequest& request) { request.name = "another"; },
      [](NamedRequest& request) { request.on_device = true; },
  };
  for (const auto& change : lies) {
    const Status status = RunWithForgedPeer(0, [&](std::string_view heard) {
      NamedRequest request = named_messages::ReadRequests(heard)->front();
      const uint64_t ticket = request.ticket;
      change(request);
      const int64_t rows = request.rows();
      return named_messages::OfBatches({{{{request, {NamedBatch::kNoTicket, ticket}, {0, rows}, {}}}, OkStatus()}})
          .front();
    });
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_NE(status.message().find("rank 0 began a request that rank 1 did not make"), std::string::npos)
        << status.ToString();
  }
}

TEST(NamedLaneHostile, ARankSurvivesWhatIsNoBatch) {
  for (const std::string& message : {std::string(), std::string("r\0\0\0\0", 5), std::string("b\xFF\xFF\xFF\xFF", 5)}) {
    const Status status = RunWithForgedPeer(0, [&](std::string_view) { return message; });
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_NE(status.message().find("rank 0 sent a message to rank 1 that cannot be read"), std::string::npos)
        << status.ToString();
  }
}

}  // namespace
}  // namespace lockstep
