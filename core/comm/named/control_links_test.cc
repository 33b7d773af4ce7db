// Promise of this file (security.md): messages that were changed, repeated, left out or reflected are found.

#include "core/comm/named/control_links.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/unique_fd.h"

namespace lockstep {
namespace {

struct Pair {
  explicit Pair(int type = SOCK_SEQPACKET) {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, fds), 0);
    first = UniqueFd(fds[0]);
    second = UniqueFd(fds[1]);
  }
  UniqueFd first, second;
};

constexpr double kLong_s = 30;

// Its parameter is the kind of socket.
class ControlLinksOver : public ::testing::TestWithParam<int> {};

TEST_P(ControlLinksOver, HandsOverWholeMessagesInOrder) {
  const Pair pair(GetParam());
  ControlLinks here({std::nullopt, pair.first.get()}), there({pair.second.get(), std::nullopt});
  // More than the buffer of a socket takes at once.
  const std::string large(5 << 20, 'x');
  for (const std::string& message : {std::string("one"), std::string(), large, std::string("three")}) {
    here.Send(1, message);
  }
  std::vector<std::string> got;
  while (got.size() < 4) {
    for (const auto& event : there.Await(0)) {
      EXPECT_EQ(event.rank, 0);
      EXPECT_FALSE(event.closed);
      got.push_back(event.message);
    }
    EXPECT_TRUE(here.Await(0).empty());  // sends the rest
  }
  EXPECT_EQ(got, (std::vector<std::string>{"one", "", large, "three"}));
  EXPECT_TRUE(here.flushed());
}

// As between hosts, where others may be inside of the connection.
TEST_P(ControlLinksOver, SealedMessagesArriveAndChangedOnesCloseTheLink) {
  const std::vector<std::optional<Digest>> keys = {Sha256("key"), Sha256("key")};
  {
    const Pair pair(GetParam());
    ControlLinks here({std::nullopt, pair.first.get()}, {}, keys, 0);
    ControlLinks there({pair.second.get(), std::nullopt}, {}, keys, 1);
    for (const std::string message : {"one", "", "three"}) here.Send(1, message);
    there.Send(0, "back");
    std::vector<std::string> got;
    while (got.size() < 3) {
      for (const auto& event : there.Await(kLong_s)) got.push_back(event.message);
    }
    EXPECT_EQ(got, (std::vector<std::string>{"one", "", "three"}));
    EXPECT_EQ(here.Await(kLong_s).at(0).message, "back");
  }
  Seal seal(Sha256("key"), ControlLinks::kSealOfLinks, 0, 1);
  const auto sealed = [&seal](const std::string& message) {
    std::string frame(Seal::kBytes, '\0');
    frame += message;
    seal.Close(frame.data(), static_cast<int64_t>(message.size()));
    ByteWriter writer;
    writer.String(frame);
    return writer.Take();
  };
  const std::string first = sealed("one"), second = sealed("two");
  std::string changed = first;
  changed.back() = 'E';
  ByteWriter bare;
  bare.String("one");
  for (const std::string& bytes : {changed, second, first + first, bare.Take()}) {
    const Pair pair(GetParam());
    ControlLinks there({pair.second.get(), std::nullopt}, {}, keys, 1);
    ASSERT_EQ(send(pair.first.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    std::vector<ControlLinks::Event> events;
    while (events.empty() || !events.back().closed) {
      for (auto& event : there.Await(kLong_s)) events.push_back(std::move(event));
    }
    EXPECT_EQ(events.size(), bytes == first + first ? 2u : 1u);
    EXPECT_EQ(events.back().why.code(), StatusCode::kDataLoss);
    EXPECT_NE(events.back().why.message().find("rank 0"), std::string::npos) << events.back().why.message();
  }
}

// If a peer ends with unread messages, the system reports the error before the data that the peer sent.
TEST_P(ControlLinksOver, HearsThePeersLastWordsBeforeItsEnd) {
  Pair pair(GetParam());
  ControlLinks here({pair.first.get()}), there({pair.second.get()});
  here.Send(0, "never read");
  there.Send(0, "one");
  there.Send(0, "farewell");
  pair.second = UniqueFd();
  const auto events = here.Await(kLong_s);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].message, "one");
  EXPECT_EQ(events[1].message, "farewell");
  EXPECT_TRUE(events[2].closed);
  EXPECT_TRUE(here.Await(0).empty());
}

INSTANTIATE_TEST_SUITE_P(Sockets, ControlLinksOver, ::testing::Values(SOCK_STREAM, SOCK_SEQPACKET));

TEST(ControlLinks, ReportsAnEndOnce) {
  Pair pair;
  ControlLinks links({pair.first.get()});
  pair.second = UniqueFd();
  const auto events = links.Await(kLong_s);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_TRUE(events[0].closed);
  EXPECT_TRUE(links.Await(0).empty());
  links.Send(0, "nobody");
  EXPECT_TRUE(links.flushed());
}

// However many messages there are, the last one must not wait for as many turns.
TEST(ControlLinks, HearsAtOnceWhatHasCome) {
  const Pair pair;
  ControlLinks here({pair.first.get()}), there({pair.second.get()});
  for (int i = 0; i < 100; ++i) there.Send(0, std::to_string(i));
  const auto events = here.Await(kLong_s);
  ASSERT_EQ(events.size(), 100u);
  EXPECT_EQ(events.back().message, "99");
}

// A child of a dead peer may keep the socket open: the messages that the peer sent before are delivered, and then the
// end.
TEST(ControlLinks, ReportsADeathWhereTheSocketStaysOpen) {
  const Pair pair;
  const UniqueFd death(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  ControlLinks here({pair.first.get()}, {death.get()}), there({pair.second.get()});
  EXPECT_TRUE(here.Await(0).empty());
  there.Send(0, "one");
  there.Send(0, "two");
  const uint64_t one = 1;
  ASSERT_EQ(write(death.get(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  const auto events = here.Await(kLong_s);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].message, "one");
  EXPECT_EQ(events[1].message, "two");
  EXPECT_TRUE(events[2].closed);
  EXPECT_TRUE(here.Await(0).empty());
}

TEST(ControlLinks, RefusesMessagesThatAreTooLong) {
  const Pair pair;
  ControlLinks links({pair.first.get()});
  ASSERT_EQ(send(pair.second.get(), "\xFF\xFF\xFF\xFF", 4, 0), 4);
  const auto events = links.Await(kLong_s);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_TRUE(events[0].closed);
}

// A peer announces 2 GiB and continues to send: it is disconnected before any of it has been kept.
TEST(ControlLinks, KeepsNothingOfAMessageThatIsTooLong) {
  Pair pair(SOCK_STREAM);
  ControlLinks links({pair.first.get()});
  ASSERT_EQ(send(pair.second.get(), "\0\0\0\x80", 4, 0), 4);
  std::thread sender([&] {
    const std::string piece(ControlLinks::kPieceBytes, 'x');
    // Ends with the socket. If the test fails, 1 GiB is sent, which takes a moment.
    for (int i = 0; i < (1 << 14) && send(pair.second.get(), piece.data(), piece.size(), MSG_NOSIGNAL) > 0; ++i) {
    }
  });
  const auto events = links.Await(kLong_s);
  pair.first = UniqueFd();
  sender.join();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_TRUE(events[0].closed);
  EXPECT_TRUE(events[0].message.empty());
}

// A peer that sends without end does not keep the others from their turn: its turn ends while there is more to read.
TEST(ControlLinks, GivesEveryPeerItsTurn) {
  const Pair noisy(SOCK_STREAM), quiet(SOCK_STREAM);
  const int most = 1 << 20;  // the system takes less: twice 208 KiB as a rule
  setsockopt(noisy.second.get(), SOL_SOCKET, SO_SNDBUF, &most, sizeof(most));
  ControlLinks links({noisy.first.get(), quiet.first.get()});
  ControlLinks other({quiet.second.get()});
  other.Send(0, "here");
  const std::string message = std::string("\xFC\x0F\0\0", 4) + std::string(4092, 'x');
  size_t sent = 0;
  while (send(noisy.second.get(), message.data(), message.size(), MSG_DONTWAIT | MSG_NOSIGNAL) ==
         static_cast<ssize_t>(message.size())) {
    sent += message.size();
  }
  constexpr size_t kTurn = 256 << 10;
  ASSERT_GT(sent, kTurn + ControlLinks::kPieceBytes) << "the socket took too little for this test";
  const auto events = links.Await(kLong_s);
  ASSERT_FALSE(events.empty());
  EXPECT_LE(events.size(), kTurn / message.size() + 1);
  EXPECT_EQ(events.back().rank, 1);
  EXPECT_EQ(events.back().message, "here");
}

TEST(ControlLinks, IsWokenByAnotherThread) {
  const Pair pair;
  ControlLinks links({pair.first.get()});
  links.Wake();
  EXPECT_TRUE(links.Await(kLong_s).empty());  // at once
  std::thread waker([&] { links.Wake(); });
  EXPECT_TRUE(links.Await(kLong_s).empty());
  waker.join();
}

}  // namespace
}  // namespace lockstep
