#include "core/comm/named/shared_links.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/unique_fd.h"

namespace lockstep {
namespace {

constexpr double kLong_s = 30;

// Two ranks, each with links that a lane and a guest share.
class SharedLinksTest : public ::testing::Test {
 protected:
  SharedLinksTest() {
    int sockets[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
    first_ = UniqueFd(sockets[0]);
    second_ = UniqueFd(sockets[1]);
    here_links_.emplace(std::vector<std::optional<int>>{std::nullopt, first_.get()});
    there_links_.emplace(std::vector<std::optional<int>>{second_.get(), std::nullopt});
    here_.emplace(*here_links_);
    there_.emplace(*there_links_);
    here_->Admit();
  }

  // Awaits messages until there are `count`, for at most kLong_s.
  template <typename Await>
  static std::vector<std::string> Messages(size_t count, const Await& await) {
    std::vector<std::string> messages;
    for (const Deadline deadline = Deadline::After(kLong_s); messages.size() < count && !deadline.Passed();) {
      for (const auto& event : await()) messages.push_back(event.closed ? "closed" : event.message);
    }
    return messages;
  }

  UniqueFd first_, second_;
  std::optional<ControlLinks> here_links_, there_links_;
  std::optional<SharedLinks> here_, there_;
};

TEST_F(SharedLinksTest, EachUserGetsItsOwnMessagesWhoeverReads) {
  for (const bool guest_reads_first : {false, true}) {
    there_links_->Send(0, "left out");
    there_links_->Send(1, "no link");
    there_links_->Send(0, "end");
    there_->guest().Send(0, "one");
    there_links_->Send(0, "request");
    there_->guest().Send(0, "");
    std::vector<std::string> lane, guest;
    const auto read_lane = [&] { lane = Messages(3, [&] { return here_->Await(0.1); }); };
    const auto read_guest = [&] { guest = Messages(2, [&] { return here_->guest().Await(0.1); }); };
    if (guest_reads_first) read_guest();
    read_lane();
    if (!guest_reads_first) read_guest();
    EXPECT_EQ(lane, (std::vector<std::string>{"left out", "end", "request"}));
    EXPECT_EQ(guest, (std::vector<std::string>{"one", ""}));
  }
}

TEST_F(SharedLinksTest, TheGuestSeesMessagesWhileTheLaneSleeps) {
  std::vector<std::string> lane;
  std::thread sleeper([&] { lane = Messages(1, [&] { return here_->Await(std::nullopt); }); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  there_->guest().Send(0, "reached");
  EXPECT_EQ(Messages(1, [&] { return here_->guest().Await(std::nullopt); }), (std::vector<std::string>{"reached"}));
  there_links_->Send(0, "batches");
  sleeper.join();
  EXPECT_EQ(lane, (std::vector<std::string>{"batches"}));
}

// A thread of the lane may wait for work without reading, and be woken.
TEST_F(SharedLinksTest, TheGuestTakesNoWakeOfTheLane) {
  here_links_->Wake();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(here_->guest().Await(0).empty());
  const Deadline deadline = Deadline::After(kLong_s);
  here_links_->WaitForWake(kLong_s);
  EXPECT_FALSE(deadline.Passed());
}

TEST_F(SharedLinksTest, BothUsersLearnOfAnEndOnce) {
  there_->guest().Send(0, "last");
  there_.reset();
  there_links_.reset();
  second_ = UniqueFd();
  EXPECT_EQ(Messages(2, [&] { return here_->guest().Await(0.1); }), (std::vector<std::string>{"last", "closed"}));
  EXPECT_EQ(Messages(1, [&] { return here_->Await(0.1); }), (std::vector<std::string>{"closed"}));
  EXPECT_TRUE(here_->Await(0).empty());
  EXPECT_TRUE(here_->guest().Await(0).empty());
}

TEST_F(SharedLinksTest, AWakeEndsAWaitOfTheGuest) {
  here_->guest().Wake();
  EXPECT_TRUE(here_->guest().Await(std::nullopt).empty());
}

// A lane without devices knows no such messages.
TEST_F(SharedLinksTest, NobodyIsAGuestWithoutAdmission) {
  here_->guest().Send(1, "x");
  EXPECT_EQ(Messages(1, [&] { return there_->Await(0.1); }), (std::vector<std::string>{"dx"}));
}

}  // namespace
}  // namespace lockstep
