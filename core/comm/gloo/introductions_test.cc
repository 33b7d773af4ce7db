// Promise of this file (security.md): streams refuse unauthenticated connections and malformed messages.

#include "core/comm/gloo/introductions.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/rendezvous/rendezvous_wire.h"
#include "core/testing/flood.h"

// Ranks connect over TCP while unauthenticated peers try to connect as well.

namespace lockstep::gloo {
namespace {

using Sockets = Result<std::vector<UniqueFd>>;

constexpr double kSoon_s = 30;

Introductions Listen() {
  Result<Introductions> made = Introductions::Listen("127.0.0.1", "rank 0");
  EXPECT_TRUE(made.ok()) << made.status().ToString();
  return *std::move(made);
}

// A connection of an unauthenticated peer.
UniqueFd Stranger(const std::string& address) {
  Result<UniqueFd> socket = wire::Connect(address, Deadline::After(kSoon_s));
  EXPECT_TRUE(socket.ok()) << socket.status().ToString();
  return *std::move(socket);
}

// Ends a connection by a reset, as port scanners do.
void Reset(UniqueFd socket) {
  const linger at_once = {.l_onoff = 1, .l_linger = 0};
  setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
}

// The ranks of a group, each on a thread.
class Group {
 public:
  explicit Group(int size) : keys(size, Sha256("key")) {
    for (int i = 0; i < size; ++i) {
      ports.push_back(Listen());
      addresses.push_back(ports.back().address());
      ranks.push_back(10 * i);
      results.emplace_back(Internal("did not run"));
    }
  }
  ~Group() { Join(); }

  void Start(int i, double seconds = kSoon_s, const std::function<Status()>& ended = nullptr) {
    threads.emplace_back([this, i, seconds, ended] {
      results[i] = ports[i].Connect(i, ranks, addresses, keys[i], Deadline::After(seconds), ended);
    });
  }
  void Join() {
    for (std::thread& thread : threads) thread.join();
    threads.clear();
  }

  // Checks that the two ends of each pair belong together.
  void ExpectConnected() {
    for (size_t i = 0; i < ports.size(); ++i) {
      ASSERT_TRUE(results[i].ok()) << "index " << i << ": " << results[i].status().ToString();
      for (size_t j = 0; j < ports.size(); ++j) EXPECT_EQ((*results[i])[j].valid(), i != j);
    }
    for (size_t i = 0; i < ports.size(); ++i) {
      for (size_t j = 0; j < ports.size(); ++j) {
        if (i == j) continue;
        EXPECT_EQ(wire::SendAll((*results[i])[j].get(), StrCat(i, ">", j), Deadline::After(kSoon_s)), OkStatus());
        const Result<std::string> got = wire::ReceiveExactly((*results[j])[i].get(), 3, Deadline::After(kSoon_s));
        ASSERT_TRUE(got.ok()) << got.status().ToString();
        EXPECT_EQ(*got, StrCat(i, ">", j));
      }
    }
  }

  std::vector<Digest> keys;
  std::vector<Introductions> ports;
  std::vector<std::string> addresses;
  std::vector<int> ranks;
  std::vector<Sockets> results;
  std::vector<std::thread> threads;
};

TEST(IntroductionsTest, ConnectEachPairOnceWhoeverComesFirst) {
  for (const bool first_last : {false, true}) {
    Group group(4);
    for (int i = 0; i < 4; ++i) {
      group.Start(first_last ? 3 - i : i);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    group.Join();
    group.ExpectConnected();
  }
}

TEST(IntroductionsTest, StrangersDisturbNobodyWhateverTheySay) {
  Group group(2);
  std::vector<UniqueFd> silent;
  // More connections than are kept: before the rank answers, while it does, and one byte at a time.
  for (int i = 0; i < 100; ++i) silent.push_back(Stranger(group.addresses[0]));
  for (int i = 0; i < 20; ++i) Reset(Stranger(group.addresses[0]));
  group.Start(0);
  for (int i = 0; i < 20; ++i) Reset(Stranger(group.addresses[0]));
  for (const size_t bytes : {1, 43, 68, 69, 100000}) {
    const UniqueFd loud = Stranger(group.addresses[0]);
    (void)wire::SendAll(loud.get(), std::string(bytes, 'x'), Deadline::After(kSoon_s));
    silent.push_back(Stranger(group.addresses[0]));
  }
  group.Start(1);
  group.Join();
  group.ExpectConnected();
}

TEST(IntroductionsTest, AFloodOfCallersThatDropPutsOffNeitherPeersNorTheDeadline) {
  Group group(3);
  const testing::Flood flood(group.addresses[0]);
  group.Start(0);
  group.Start(1);
  group.Start(2);
  group.Join();
  EXPECT_TRUE(flood.goes_on()) << "the ranks met when the flood had ended, after " << flood.calls() << " calls";
  group.ExpectConnected();

  Group incomplete(2);
  const testing::Flood another(incomplete.addresses[0]);
  testing::LateTurns late(1);
  incomplete.Start(0, 1, [&] { return late.Turn(); });
  incomplete.Join();
  EXPECT_LE(late.count(), 1) << "the deadline is looked at in each turn";
  EXPECT_TRUE(another.goes_on()) << "the wait ended when the flood did, after " << another.calls() << " calls";
  EXPECT_EQ(incomplete.results[0].status(),
            DeadlineExceeded("rank 0: no connection from rank 10 within the rendezvous timeout"));
}

// The number is bounded so that the rank checks its deadline in time, however many have called.
TEST(IntroductionsTest, ATurnGreetsABoundedNumberOfCallers) {
  Group group(2);
  testing::Queue queue(group.addresses[0], 10 * wire::kMostCallers);
  group.Start(0, kSoon_s, [&] { return queue.Turn(); });
  group.Join();
  EXPECT_EQ(group.results[0].status(), Cancelled("all were greeted"));
  EXPECT_EQ(queue.size(), 10 * wire::kMostCallers);
  EXPECT_LE(queue.most_a_turn(), wire::kMostCallers);
}

TEST(IntroductionsTest, AWrongProofIsAnsweredByZeros) {
  Group group(2);
  group.Start(0);
  const UniqueFd stranger = Stranger(group.addresses[0]);
  ASSERT_TRUE(wire::ReceiveExactly(stranger.get(), 40, Deadline::After(kSoon_s)).ok());
  EXPECT_EQ(
      wire::SendAll(stranger.get(), StrCat(std::string("\1\0\0\0", 4), std::string(64, 'p')), Deadline::After(kSoon_s)),
      OkStatus());
  const auto answer = wire::ReceiveExactly(stranger.get(), 32, Deadline::After(kSoon_s));
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(*answer, std::string(32, '\0'));
  group.Start(1);
  group.Join();
  group.ExpectConnected();
}

// A proof is valid for one connection, one caller and one direction.
TEST(IntroductionsTest, AProofThatWasRecordedIsWorthless) {
  Group group(2);
  group.Start(0);
  const auto proof_for = [&](std::string_view word, int caller, std::string_view banner) {
    const Digest proof = HmacSha256(AsBytes(group.keys[0]), StrCat("lockstep stream ", word, ":", caller,
                                                                   ">0:", banner.substr(8), std::string(32, 'n')));
    return StrCat(std::string("\1\0\0\0", 4), std::string(32, 'n'), AsBytes(proof));
  };
  const auto answer_to = [&](const UniqueFd& socket, const std::string& proof) {
    EXPECT_EQ(wire::SendAll(socket.get(), proof, Deadline::After(kSoon_s)), OkStatus());
    return wire::ReceiveExactly(socket.get(), 32, Deadline::After(kSoon_s));
  };
  const UniqueFd first = Stranger(group.addresses[0]);
  const auto heard = wire::ReceiveExactly(first.get(), 40, Deadline::After(kSoon_s));
  ASSERT_TRUE(heard.ok());
  for (const std::string& recorded :
       {proof_for("call", 1, *heard), proof_for("answer", 1, *heard), proof_for("call", 2, *heard)}) {
    const UniqueFd later = Stranger(group.addresses[0]);
    ASSERT_TRUE(wire::ReceiveExactly(later.get(), 40, Deadline::After(kSoon_s)).ok());
    const auto answer = answer_to(later, recorded);
    ASSERT_TRUE(answer.ok());
    EXPECT_EQ(*answer, std::string(32, '\0'));
  }
  // It is valid for the connection that it was made for.
  const auto answer = answer_to(first, proof_for("call", 1, *heard));
  ASSERT_TRUE(answer.ok());
  EXPECT_NE(*answer, std::string(32, '\0'));
  group.Join();
  EXPECT_TRUE(group.results[0].ok()) << group.results[0].status().ToString();
}

TEST(IntroductionsTest, ARankWithAnotherKeyIsTurnedAwayAtOnceAndTheRightOneMayStillCome) {
  Group group(2);
  group.keys[1] = Sha256("another key");
  group.Start(0);
  std::thread& wrong = (group.Start(1), group.threads.back());
  wrong.join();
  group.threads.pop_back();
  EXPECT_EQ(group.results[1].status().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(group.results[1].status().message().find("rank 10: no connection to rank 0"), std::string::npos);
  EXPECT_NE(group.results[1].status().message().find("does not know the key"), std::string::npos);
  group.keys[1] = group.keys[0];
  group.Start(1);
  group.Join();
  group.ExpectConnected();
}

TEST(IntroductionsTest, WhoDoesNotComeIsNamed) {
  Group group(3);
  group.Start(0, 2);
  group.Start(1, 2);
  group.Join();
  EXPECT_EQ(group.results[0].status(),
            DeadlineExceeded("rank 0: no connection from rank 20 within the rendezvous timeout"));
  EXPECT_EQ(group.results[1].status(),
            DeadlineExceeded("rank 10: no connection from rank 20 within the rendezvous timeout"));
}

TEST(IntroductionsTest, TheWaitEndsWhenSomebodyElseKnowsWhy) {
  Group group(2);
  std::atomic<bool> over = false;
  const auto ended = [&] { return over ? Unavailable("rank 10 died") : OkStatus(); };
  group.Start(0, kSoon_s, ended);
  // A program listens there and sends nothing.
  const Result<Introductions> mute = Introductions::Listen("127.0.0.1", "mute");
  ASSERT_TRUE(mute.ok());
  group.addresses[0] = mute->address();
  group.Start(1, kSoon_s, ended);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  over = true;
  group.Join();
  for (const Sockets& result : group.results) EXPECT_EQ(result.status(), Unavailable("rank 10 died"));
}

TEST(IntroductionsTest, AnAddressThatIsCutIsSaidToBe) {
  for (const char* address : {"", ":", "127.0.0.1", "127.0.0.1:", "[::1", "127.0.0.1:x"}) {
    Group group(2);
    group.addresses[0] = address;
    group.Start(1);
    group.Join();
    EXPECT_EQ(group.results[1].status().code(), StatusCode::kInvalidArgument)
        << address << ": " << group.results[1].status().ToString();
  }
}

TEST(IntroductionsTest, AnotherProgramAtTheAddressIsNotTalkedTo) {
  Group group(2);
  const Result<UniqueFd> port = wire::Listen(group.addresses[0] = "127.0.0.1:0");
  ASSERT_TRUE(port.ok());
  sockaddr_storage self = {};
  socklen_t length = sizeof(self);
  getsockname(port->get(), reinterpret_cast<sockaddr*>(&self), &length);
  group.addresses[0] = StrCat("127.0.0.1:", ntohs(reinterpret_cast<sockaddr_in&>(self).sin_port));
  group.Start(1);
  ASSERT_TRUE(wire::AwaitReadable(port->get(), Deadline::After(kSoon_s), nullptr).ok());
  const UniqueFd caller(accept(port->get(), nullptr, nullptr));
  EXPECT_EQ(wire::SendAll(caller.get(), std::string(100, 'S'), Deadline::After(kSoon_s)), OkStatus());
  group.Join();
  EXPECT_EQ(group.results[1].status().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(group.results[1].status().message().find("another program listens there"), std::string::npos);
}

TEST(IntroductionsTest, AnAddressOfAnotherMachineCannotBeListenedAt) {
  EXPECT_EQ(Introductions::Listen("192.0.2.1", "rank 3").status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace lockstep::gloo
