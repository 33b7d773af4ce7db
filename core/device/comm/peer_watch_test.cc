#include "core/device/comm/peer_watch.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include "core/base/bytes.h"
#include "core/base/unique_fd.h"
#include "core/testing/scripted_communicator.h"

namespace lockstep::device {
namespace {

// Rank 0 of two, whose link the test holds at its other end.
class Host : public testing::ScriptedCommunicator {
 public:
  explicit Host(int socket) : ScriptedCommunicator(""), socket_(socket) {}
  std::optional<int> Link(int rank) const override { return rank == 1 ? std::optional(socket_) : std::nullopt; }

 private:
  const int socket_;
};

class PeerWatchTest : public ::testing::Test {
 protected:
  PeerWatchTest() {
    int sockets[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
    own_ = UniqueFd(sockets[0]);
    peer_ = UniqueFd(sockets[1]);
    host_.emplace(own_.get());
    watch_.emplace(*host_, std::vector<int64_t>{10, 11}, /*stall_timeout_s=*/0.6);
  }
  // Sends a message of rank 1.
  void Send(std::string_view message) {
    ByteWriter writer;
    writer.Number(static_cast<uint32_t>(message.size()));
    const std::string bytes = writer.Take() + std::string(message);
    EXPECT_EQ(send(peer_.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
    watch_->Await(0.0);
  }
  static std::string Message(char kind, int64_t rank, int64_t number, std::string_view text) {
    ByteWriter writer;
    writer.Number(rank);
    writer.Number(number);
    writer.String(text);
    return kind + writer.Take();
  }
  // Judges until there is an error, for at most a second.
  Status Judge(int64_t number) {
    Status status;
    for (int i = 0; i < 100 && status.ok(); ++i) {
      watch_->Await(0.01);
      status = watch_->Judge(PeerWatch::Waiting{number, "allreduce 'x'", true}, number);
    }
    return status;
  }

  UniqueFd own_, peer_;
  std::optional<Host> host_;
  std::optional<PeerWatch> watch_;
};

TEST_F(PeerWatchTest, ARankWhoseDeviceHasNotComeIsLate) {
  Send(Message('r', 1, 6, ""));
  EXPECT_EQ(Judge(7), DeadlineExceeded("rank 0: nothing from the device of rank 1 for 0.6 s in allreduce 'x'"));
}

TEST_F(PeerWatchTest, ARankWhoseDeviceHasComeIsNotBlamed) {
  Send(Message('r', 1, 7, ""));
  EXPECT_EQ(Judge(7),
            DeadlineExceeded("rank 0: the devices of all ranks have begun allreduce 'x', but it has not ended "
                             "for 0.6 s"));
}

TEST_F(PeerWatchTest, ARankMayLeaveWhenItHasEndedTheCall) {
  Send(Message('l', 1, 7, "done"));
  EXPECT_EQ(Judge(7).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Judge(8), Unavailable("rank 0: rank 1 left the job while rank 0 waited for it in allreduce 'x': done"));
}

TEST_F(PeerWatchTest, ALinkThatEndsIsADeath) {
  peer_ = UniqueFd();
  EXPECT_EQ(Judge(1), Unavailable("rank 0: rank 1 (process 11) died while rank 0 waited for it in allreduce 'x'"));
}

TEST_F(PeerWatchTest, AnErrorOfAPeerKeepsItsCode) {
  Send(Message('e', 1, static_cast<int64_t>(StatusCode::kDataLoss), "rank 1 gave up: bad bytes"));
  EXPECT_EQ(Judge(1), DataLoss("rank 0: allreduce 'x' ended, because rank 1 gave up: bad bytes"));
  EXPECT_TRUE(watch_->is_ended_by_peer());
}

// Messages that no rank sends: of another rank, of another kind, too short, without an error.
TEST_F(PeerWatchTest, OtherMessagesAreRefused) {
  const std::string good = Message('r', 1, 7, "");
  for (const std::string& bad :
       {Message('r', 0, 7, ""), Message('r', 2, 7, ""), Message('x', 1, 7, ""), good.substr(0, good.size() - 1),
        good + "x", std::string(), Message('e', 1, 0, ""), Message('e', 1, 100, "")}) {
    watch_.emplace(*host_, std::vector<int64_t>{10, 11}, 0.6);
    Send(bad);
    EXPECT_EQ(Judge(1),
              DataLoss("rank 0: allreduce 'x' ended, because rank 1 sent a message on its link that cannot be "
                       "read"));
  }
}

TEST_F(PeerWatchTest, RandomBytesHarmNothing) {
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    std::string message(random() % 40, '\0');
    for (char& c : message) c = static_cast<char>(random());
    if (!message.empty() && random() % 2 == 0) message.front() = "rel"[random() % 3];
    Send(message);
    (void)watch_->Judge(PeerWatch::Waiting{1, "allreduce 'x'", true}, 1);
  }
}

}  // namespace
}  // namespace lockstep::device
