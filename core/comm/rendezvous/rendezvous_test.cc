// Promise of this file (security.md): the rendezvous refuses unauthenticated connections, wrong and repeated proofs,
// and impossible lengths.

#include "core/comm/rendezvous/rendezvous.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/strings.h"
#include "core/comm/rendezvous/rendezvous_wire.h"
#include "core/testing/flood.h"
#include "core/testing/ranks.h"

namespace lockstep {
namespace {

using testing::FreeLocalAddress;

RendezvousOptions Options(int rank, int size, const std::string& address) {
  return {rank, size, address, "secret", StrCat("note of ", rank), 30};
}

// Lets each of `all` join the rendezvous in its own thread.
std::vector<Result<RendezvousResult>> JoinAll(const std::vector<RendezvousOptions>& all) {
  std::vector<Result<RendezvousResult>> results;
  for (size_t i = 0; i < all.size(); ++i) results.emplace_back(Internal("did not run"));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < all.size(); ++i) threads.emplace_back([&, i] { results[i] = JoinRendezvous(all[i]); });
  for (std::thread& thread : threads) thread.join();
  return results;
}

// The options of all ranks of a job, each with its own note.
std::vector<RendezvousOptions> WholeJob(int size, const std::string& address) {
  std::vector<RendezvousOptions> all;
  for (int rank = 0; rank < size; ++rank) all.push_back(Options(rank, size, address));
  return all;
}

void ExpectMet(const Result<RendezvousResult>& result, int size) {
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  for (int rank = 0; rank < size; ++rank) EXPECT_EQ(result->notes[rank], StrCat("note of ", rank));
}

TEST(RendezvousTest, EveryRankGetsAllNotesAndTheSameKey) {
  const auto results = JoinAll(WholeJob(5, FreeLocalAddress()));
  for (const auto& result : results) {
    ExpectMet(result, 5);
    EXPECT_EQ(result->key, results[0]->key);
  }
  const auto again = JoinAll(WholeJob(2, FreeLocalAddress()));
  EXPECT_NE(again[0]->key, results[0]->key) << "each meeting has a key of its own";
}

TEST(RendezvousTest, GuestsMayComeBeforeRankZeroListens) {
  const std::string address = FreeLocalAddress();
  Result<RendezvousResult> guest = Internal("did not run");
  std::thread thread([&] { guest = JoinRendezvous(Options(1, 2, address)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const Result<RendezvousResult> host = JoinRendezvous(Options(0, 2, address));
  thread.join();
  ExpectMet(host, 2);
  ExpectMet(guest, 2);
}

// Ports are numbers: a service name such as "http" is not a port.
TEST(RendezvousTest, AddressesOfBothKindsAndNamesAreUnderstood) {
  const std::string port = FreeLocalAddress().substr(std::string("127.0.0.1").size());
  ExpectMet(JoinAll(WholeJob(2, "localhost" + port))[1], 2);
  for (const char* bad : {"", "nowhere", "127.0.0.1:", ":123", "127.0.0.1:http"}) {
    const Result<RendezvousResult> result = JoinRendezvous(Options(0, 2, bad));
    EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument) << bad << ": " << result.status().ToString();
  }
}

// Rank 2's own deadline is far away: it gets the report of rank 0, whose deadline has passed.
TEST(RendezvousTest, MissingRanksAreNamedToAllAtTheDeadline) {
  const std::string address = FreeLocalAddress();
  auto host = Options(0, 4, address);
  host.timeout_s = 2;  // rank 2 has come by then
  const auto results = JoinAll({host, Options(2, 4, address)});
  for (const auto& result : results) {
    EXPECT_EQ(result.status().code(), StatusCode::kDeadlineExceeded);
    EXPECT_NE(result.status().message().find("ranks 1 and 3 of 4 did not come"), std::string::npos)
        << result.status().ToString();
  }
}

// The port is free: no program listens there, and a guest must not connect to itself.
TEST(RendezvousTest, AMissingRankZeroIsNamed) {
  auto guest = Options(1, 2, FreeLocalAddress());
  guest.timeout_s = 0.2;
  const Status status = JoinRendezvous(guest).status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(status.message().find("rank 0 is missing"), std::string::npos) << status.ToString();
}

// The caller with the wrong secret comes first and claims a rank that the job needs.
TEST(RendezvousTest, AWrongSecretIsRefusedAndDisturbsNobody) {
  const std::string address = FreeLocalAddress();
  auto all = WholeJob(2, address);
  auto stranger = Options(1, 2, address);
  stranger.secret = "guess";
  Result<RendezvousResult> host = Internal("did not run");
  std::thread thread([&] { host = JoinRendezvous(all[0]); });
  const Status refused = JoinRendezvous(stranger).status();
  const Result<RendezvousResult> guest = JoinRendezvous(all[1]);
  thread.join();
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.message().find("the secrets differ"), std::string::npos) << refused.ToString();
  ExpectMet(host, 2);
  ExpectMet(guest, 2);
}

// Callers that send nothing, another protocol, more than any message has, the beginning of a proof, a wrong proof, and
// one with more after it.
TEST(RendezvousTest, StrangersThatSendGarbageOrNothingDisturbNobody) {
  const std::string address = FreeLocalAddress();
  auto all = WholeJob(2, address);
  Result<RendezvousResult> host = Internal("did not run");
  std::thread thread([&] { host = JoinRendezvous(all[0]); });
  const Deadline deadline = Deadline::After(30);
  std::vector<UniqueFd> strangers;
  const std::string garbage[] = {"",
                                 "GET / HTTP/1.1\r\n\r\n",
                                 std::string(1 << 20, '\xff'),
                                 std::string(wire::kMagic),
                                 StrCat(wire::kMagic, std::string(64, 'x')),
                                 StrCat(wire::kMagic, std::string(9000, 'y'))};
  // More than the host keeps: the oldest are closed.
  for (int i = 0; i < 100; ++i) {
    Result<UniqueFd> stranger = wire::Connect(address, deadline);
    ASSERT_TRUE(stranger.ok()) << stranger.status().ToString();
    (void)wire::SendAll(stranger->get(), garbage[i % std::size(garbage)],
                        deadline);  // the host may disconnect in between
    strangers.push_back(*std::move(stranger));
  }
  const Result<RendezvousResult> guest = JoinRendezvous(all[1]);
  thread.join();
  ExpectMet(host, 2);
  ExpectMet(guest, 2);
}

TEST(RendezvousTest, CallersAreTakenAFewAtATimeAndThoseThatHungUpAreLeftOut) {
  constexpr int kStay = 3 * wire::kMostCallers;
  const std::string address = FreeLocalAddress();
  const Deadline deadline = Deadline::After(30);
  const Result<UniqueFd> listener = wire::Listen(address);
  ASSERT_TRUE(listener.ok()) << listener.status().ToString();
  std::vector<UniqueFd> callers;
  for (int i = 0; i < 2 * kStay; ++i) {
    UniqueFd caller = *wire::Connect(address, deadline);
    if (i % 2 == 0) callers.push_back(std::move(caller));
  }
  size_t taken = 0;
  int turns = 0;
  for (; taken < callers.size() && !deadline.Passed(); ++turns) taken += wire::AcceptCallers(listener->get()).size();
  EXPECT_EQ(taken, callers.size());
  // Every other one had disconnected.
  EXPECT_GE(turns, 2 * kStay / wire::kMostCallers);
  EXPECT_TRUE(wire::AcceptCallers(listener->get()).empty());
}

// So the host checks its deadline again soon, however many callers there are.
TEST(RendezvousTest, ATurnGreetsABoundedNumberOfCallers) {
  auto host = Options(0, 2, FreeLocalAddress());
  const Result<UniqueFd> listener = wire::Listen(host.address);
  ASSERT_TRUE(listener.ok()) << listener.status().ToString();
  host.listener = listener->get();
  testing::Queue queue(host.address, 10 * wire::kMostCallers);
  host.ended = [&] { return queue.Turn(); };
  EXPECT_EQ(JoinRendezvous(host).status(), Cancelled("all were greeted"));
  EXPECT_EQ(queue.size(), 10 * wire::kMostCallers);
  EXPECT_LE(queue.most_a_turn(), wire::kMostCallers);
}

TEST(RendezvousTest, AFloodOfCallersThatDropDoesNotPutOffTheDeadline) {
  auto host = Options(0, 2, FreeLocalAddress());
  host.timeout_s = 1;
  testing::LateTurns late(host.timeout_s);
  host.ended = [&] { return late.Turn(); };
  const testing::Flood flood(host.address);
  const Status status = JoinRendezvous(host).status();
  EXPECT_TRUE(flood.goes_on()) << "the meeting ended when the flood did, after " << flood.calls() << " calls";
  EXPECT_LE(late.count(), 1) << "the deadline is looked at in each turn";
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(status.message().find("rank 1 of 2 did not come"), std::string::npos) << status.ToString();
}

TEST(RendezvousTest, GuestsThatComeDuringAFloodAreServed) {
  const auto all = WholeJob(4, FreeLocalAddress());
  const testing::Flood flood(all[0].address);
  const auto results = JoinAll(all);
  EXPECT_TRUE(flood.goes_on()) << "the ranks met when the flood had ended, after " << flood.calls() << " calls";
  for (const auto& result : results) ExpectMet(result, 4);
}

// The host does this with the oldest of too many connections that have not proven themselves.
TEST(RendezvousTest, AGuestThatIsHungUpOnBeforeItsProofConnectsAgain) {
  const std::string address = FreeLocalAddress();
  const auto all = WholeJob(2, address);
  Result<RendezvousResult> guest = Internal("did not run");
  Result<UniqueFd> listener = wire::Listen(address);
  ASSERT_TRUE(listener.ok()) << listener.status().ToString();
  std::thread thread([&] { guest = JoinRendezvous(all[1]); });
  pollfd entry = {listener->get(), POLLIN, 0};
  EXPECT_EQ(poll(&entry, 1, 30000), 1);
  EXPECT_TRUE(UniqueFd(accept(listener->get(), nullptr, nullptr)).valid());
  listener = Internal("closed");
  const Result<RendezvousResult> host = JoinRendezvous(all[0]);
  thread.join();
  ExpectMet(host, 2);
  ExpectMet(guest, 2);
}

TEST(RendezvousTest, AProofOfAnotherConnectionIsWorthless) {
  const std::string address = FreeLocalAddress();
  auto all = WholeJob(2, address);
  Result<RendezvousResult> host = Internal("did not run");
  std::thread thread([&] { host = JoinRendezvous(all[0]); });
  const Deadline deadline = Deadline::After(30);
  // A peer that has recorded a good proof sends it again.
  const std::string nonce(wire::kNonceBytes, 'n');
  const auto talk = [&](const std::string& proof) {
    const UniqueFd socket = *wire::Connect(address, deadline);
    const std::string banner = *wire::ReceiveExactly(socket.get(), wire::kBannerBytes, deadline);
    const std::string mine(AsBytes(wire::MakeKeys("secret", banner.substr(12), nonce).guest_proof));
    EXPECT_TRUE(wire::SendAll(socket.get(), StrCat(wire::kMagic, nonce, proof.empty() ? mine : proof), deadline).ok());
    const std::string verdict = *wire::ReceiveExactly(socket.get(), wire::kVerdictBytes, deadline);
    return std::make_pair(verdict[0], mine);
  };
  const auto [welcome, recorded] = talk("");
  EXPECT_EQ(welcome, wire::kWelcome);
  EXPECT_EQ(talk(recorded).first, wire::kRefused);
  const Result<RendezvousResult> guest = JoinRendezvous(all[1]);
  thread.join();
  ExpectMet(host, 2);
  ExpectMet(guest, 2);
}

TEST(RendezvousTest, TwoProcessesCannotBeOneRank) {
  const std::string address = FreeLocalAddress();
  // Rank 2 of 3 is there twice; one of them is refused, and the other joins as soon as rank 1 comes.
  Result<RendezvousResult> host = Internal("did not run"), last = Internal("did not run");
  Result<RendezvousResult> twins[2] = {Internal("did not run"), Internal("did not run")};
  std::atomic<int> refused = 0;
  std::vector<std::thread> threads;
  threads.emplace_back([&] { host = JoinRendezvous(Options(0, 3, address)); });
  for (int twin : {0, 1}) {
    threads.emplace_back([&, twin] {
      twins[twin] = JoinRendezvous(Options(2, 3, address));
      if (!twins[twin].ok()) ++refused;
    });
  }
  const Deadline deadline = Deadline::After(30);
  while (refused == 0 && !deadline.Passed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  last = JoinRendezvous(Options(1, 3, address));
  for (std::thread& thread : threads) thread.join();
  ExpectMet(host, 3);
  ExpectMet(last, 3);
  EXPECT_NE(twins[0].ok(), twins[1].ok());
  const Status& status = twins[0].ok() ? twins[1].status() : twins[0].status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("two processes claim rank 2"), std::string::npos) << status.ToString();
}

TEST(RendezvousTest, SizesThatDifferEndTheJobWithBothNamed) {
  const std::string address = FreeLocalAddress();
  for (const auto& result : JoinAll({Options(0, 2, address), Options(1, 4, address)})) {
    EXPECT_EQ(result.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(result.status().message().find("rank 1 was started for a job of 4 ranks, rank 0 for one of 2"),
              std::string::npos)
        << result.status().ToString();
  }
}

// Sends a rank's hello, is welcome, and closes the connection.
void ComeAndGo(uint32_t rank, uint32_t size, const std::string& address) {
  const Deadline deadline = Deadline::After(30);
  const UniqueFd socket = *wire::Connect(address, deadline);
  const std::string banner = *wire::ReceiveExactly(socket.get(), wire::kBannerBytes, deadline);
  const std::string nonce = *wire::MakeNonce();
  const wire::Keys keys = wire::MakeKeys("secret", banner.substr(12), nonce);
  const std::string hello = wire::Encode(wire::Hello{rank, size, 12, "gone"});
  ASSERT_TRUE(wire::SendAll(socket.get(),
                            StrCat(wire::kMagic, nonce, AsBytes(keys.guest_proof),
                                   wire::MakeFrame(keys.frames, wire::Direction::kToHost, hello)),
                            deadline)
                  .ok());
  ASSERT_TRUE(wire::ReceiveExactly(socket.get(), wire::kVerdictBytes, deadline).ok());
}

TEST(RendezvousTest, ARankThatCameAndDiedIsNamedWithItsPlace) {
  auto host = Options(0, 4, FreeLocalAddress());
  host.timeout_s = 3;
  host.name = [](int rank, std::string_view note) {
    return rank == 1      ? ""
           : note.empty() ? StrCat("rank ", rank, " on a host")
                          : StrCat("rank ", rank, " of '", note, "'");
  };
  Status status;
  std::thread thread([&] { status = JoinRendezvous(host).status(); });
  ComeAndGo(2, 4, host.address);
  thread.join();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(),
            StrCat("ranks 1, 2 and 3 of 4 did not come to the rendezvous at '", host.address,
                   "' within 3 s; rank 2 of 'gone' came, then died or gave up; rank 3 on a host is still on its way"));
}

// Long before the time for a rank that never came (here rank 3) is over.
TEST(RendezvousTest, ARankThatCameAndDiedEndsTheMeetingSoonForAllWhoWait) {
  auto all = WholeJob(4, FreeLocalAddress());
  all[0].name = [](int rank, std::string_view note) { return StrCat("rank ", rank, " of '", note, "'"); };
  std::vector<Status> statuses(2);
  std::vector<std::thread> threads;
  const Deadline since = Deadline::After(0);
  for (const int rank : {0, 1})
    threads.emplace_back([&, rank] { statuses[rank] = JoinRendezvous(all[rank]).status(); });
  ComeAndGo(2, 4, all[0].address);
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(since.Elapsed(), 20);
  EXPECT_GT(since.Elapsed(), 4) << "it may be started again";
  for (const Status& status : statuses) {
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_EQ(status.message(), StrCat("rank 2 of 4 went away from the rendezvous at '", all[0].address,
                                       "' and did not come back within 5 s; rank 2 of 'gone' came, then died or gave "
                                       "up"));
  }
}

TEST(RendezvousTest, ARankThatCameBackInTimeIsNotMissed) {
  const auto all = WholeJob(3, FreeLocalAddress());
  Result<RendezvousResult> results[] = {Internal("did not run"), Internal("did not run"), Internal("did not run")};
  std::vector<std::thread> threads;
  threads.emplace_back([&] { results[0] = JoinRendezvous(all[0]); });
  ComeAndGo(1, 3, all[0].address);
  std::this_thread::sleep_for(std::chrono::seconds(1));
  threads.emplace_back([&] { results[1] = JoinRendezvous(all[1]); });
  std::this_thread::sleep_for(std::chrono::milliseconds(5500));
  results[2] = JoinRendezvous(all[2]);
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) ExpectMet(result, 3);
}

// A guest that has sent its hello fails at once; one between the banner and its proof tries for a while.
TEST(RendezvousTest, AGuestDoesNotWaitForARankZeroThatDied) {
  const auto all = WholeJob(3, FreeLocalAddress());
  {
    RendezvousOptions host = all[0];
    std::atomic<bool> dies = false;
    host.ended = [&] { return dies ? Cancelled("dies") : OkStatus(); };
    Status status, of_host;
    std::thread hosting([&] { of_host = JoinRendezvous(host).status(); });
    std::thread thread([&] { status = JoinRendezvous(all[1]).status(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    const Deadline since = Deadline::After(0);
    dies = true;
    thread.join();
    hosting.join();
    EXPECT_LT(since.Elapsed(), 20);
    EXPECT_EQ(of_host.code(), StatusCode::kCancelled);
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.ToString();
    EXPECT_NE(status.message().find("rendezvous with rank 0 at"), std::string::npos) << status.ToString();
  }
  Result<UniqueFd> listener = wire::Listen(all[0].address);
  ASSERT_TRUE(listener.ok()) << listener.status().ToString();
  Status status;
  const Deadline since = Deadline::After(0);
  std::thread thread([&] { status = JoinRendezvous(all[1]).status(); });
  pollfd entry = {listener->get(), POLLIN, 0};
  EXPECT_EQ(poll(&entry, 1, 30000), 1);
  {
    const UniqueFd caller(accept(listener->get(), nullptr, nullptr));
    const std::string banner = StrCat(wire::kMagic, std::string(1, static_cast<char>(wire::kVersion)),
                                      std::string(3, '\0'), std::string(wire::kNonceBytes, 'n'));
    EXPECT_TRUE(wire::SendAll(caller.get(), banner, Deadline::After(30)).ok());
    EXPECT_TRUE(wire::ReceiveExactly(caller.get(), 1, Deadline::After(30)).ok());
  }
  listener = Internal("closed");
  thread.join();
  EXPECT_LT(since.Elapsed(), 20);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.ToString();
  EXPECT_NE(status.message().find("rank 0 is missing"), std::string::npos) << status.ToString();
  EXPECT_NE(status.message().find("it was there, then died or gave up"), std::string::npos) << status.ToString();
}

TEST(RendezvousTest, AGuestLooksAtTheWholeVersion) {
  RendezvousOptions options = Options(1, 2, FreeLocalAddress());
  Result<UniqueFd> listener = wire::Listen(options.address);
  ASSERT_TRUE(listener.ok()) << listener.status().ToString();
  Status status;
  std::thread thread([&] { status = JoinRendezvous(options).status(); });
  pollfd entry = {listener->get(), POLLIN, 0};
  EXPECT_EQ(poll(&entry, 1, 30000), 1);
  const UniqueFd caller(accept(listener->get(), nullptr, nullptr));
  const std::string theirs = {static_cast<char>(wire::kVersion), 1, 0, 0};
  const std::string banner = StrCat(wire::kMagic, theirs, std::string(wire::kNonceBytes, 'n'));
  EXPECT_TRUE(wire::SendAll(caller.get(), banner, Deadline::After(30)).ok());
  thread.join();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status.ToString();
  const std::string wanted = StrCat("it speaks version ", 256 + wire::kVersion, " of the protocol");
  EXPECT_NE(status.message().find(wanted), std::string::npos) << status.ToString();
}

TEST(RendezvousTest, ARankThatWentAwayIsMissingAgainAndMayComeBack) {
  const std::string address = FreeLocalAddress();
  Result<RendezvousResult> host = Internal("did not run");
  std::thread thread([&] { host = JoinRendezvous(Options(0, 3, address)); });
  ComeAndGo(1, 3, address);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const auto others = JoinAll({Options(1, 3, address), Options(2, 3, address)});
  thread.join();
  ExpectMet(host, 3);
  ExpectMet(others[0], 3);
}

// Everything that is promised about a kept connection, and that it leads to the right rank.
TEST(RendezvousTest, KeptConnectionsLeadToTheRanksTheyAreOf) {
  auto all = WholeJob(4, FreeLocalAddress());
  for (auto& options : all) options.keep_connections = true;
  const auto results = JoinAll(all);
  const Deadline deadline = Deadline::After(30);
  for (int rank = 0; rank < 4; ++rank) {
    ExpectMet(results[rank], 4);
    const std::vector<UniqueFd>& connections = results[rank]->connections;
    ASSERT_EQ(connections.size(), 4u);
    for (int peer = 0; peer < 4; ++peer) {
      ASSERT_EQ(connections[peer].valid(), peer != rank && (peer == 0 || rank == 0)) << rank << " to " << peer;
      if (!connections[peer].valid()) continue;
      const int socket = connections[peer].get();
      EXPECT_NE(fcntl(socket, F_GETFL) & O_NONBLOCK, 0);
      EXPECT_NE(fcntl(socket, F_GETFD) & FD_CLOEXEC, 0);
      using Pair = std::pair<int, int>;
      for (const auto& [level, option] : {Pair(IPPROTO_TCP, TCP_NODELAY), Pair(SOL_SOCKET, SO_KEEPALIVE)}) {
        int value = 0;
        socklen_t length = sizeof(value);
        EXPECT_EQ(getsockopt(socket, level, option, &value, &length), 0);
        EXPECT_NE(value, 0);
      }
      EXPECT_TRUE(wire::SendAll(socket, StrCat(rank, peer), deadline).ok());
    }
  }
  for (int rank = 0; rank < 4; ++rank) {
    for (int peer = 0; peer < 4; ++peer) {
      const UniqueFd& socket = results[rank]->connections[peer];
      if (!socket.valid()) continue;
      EXPECT_EQ(*wire::ReceiveExactly(socket.get(), 2, deadline), StrCat(peer, rank));
    }
  }
  EXPECT_TRUE(JoinAll(WholeJob(2, FreeLocalAddress()))[0]->connections.empty());
}

TEST(RendezvousTest, AddressesAreThoseThatRanksSeeOfEachOther) {
  for (const auto& result : JoinAll(WholeJob(3, FreeLocalAddress()))) {
    ExpectMet(result, 3);
    EXPECT_EQ(result->addresses, std::vector<std::string>(3, "127.0.0.1"));
    EXPECT_EQ(result->own_address, "127.0.0.1");
  }
  const std::string port = FreeLocalAddress().substr(std::string("127.0.0.1").size());
  const auto v6 = WholeJob(2, "[::1]" + port);
  if (!wire::Listen(v6[0].address).ok()) GTEST_SKIP() << "this machine has no IPv6";
  for (const auto& result : JoinAll(v6)) {
    ExpectMet(result, 2);
    EXPECT_EQ(result->addresses, std::vector<std::string>(2, "::1"));
    EXPECT_EQ(result->own_address, "::1");
  }
}

// For example, a machine's own name leads it to loopback, and leads others to an address of it.
TEST(RendezvousTest, RankZeroMayListenAtAllAddresses) {
  const std::string port = FreeLocalAddress().substr(std::string("127.0.0.1").size());
  const bool has_v6 = wire::Listen("[::1]" + port).ok();
  for (const std::string& listen : {"0.0.0.0" + port, "[::]" + port}) {
    if (!has_v6 && listen[0] == '[') continue;
    std::vector<RendezvousOptions> all = {Options(0, 3, "name.invalid" + port), Options(1, 3, "127.0.0.2" + port),
                                          Options(2, 3, (listen[0] == '[' ? "[::1]" : "127.0.0.3") + port)};
    all[0].listen = listen;
    const auto results = JoinAll(all);
    for (const auto& result : results) ExpectMet(result, 3);
    EXPECT_EQ(results[0]->own_address, "127.0.0.2");
    EXPECT_EQ(results[2]->addresses[0], listen[0] == '[' ? "::1" : "127.0.0.3");
  }
}

// The ranks come to the second one as soon as they have the first: guests often before rank 0 listens again, or while
// its first listener still exists. The first one's connections stay.
TEST(RendezvousTest, ASecondMeetingAtTheSameAddressMayFollowAtOnce) {
  for (int turn = 0; turn < 20; ++turn) {
    const auto all = WholeJob(5, FreeLocalAddress());
    std::vector<std::string> errors(all.size());
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < all.size(); ++rank) {
      threads.emplace_back([&, rank] {
        RendezvousOptions options = all[rank];
        options.keep_connections = true;
        const Result<RendezvousResult> first = JoinRendezvous(options);
        if (!first.ok()) return void(errors[rank] = first.status().ToString());
        // Sometimes one rank is late.
        if (turn % 4 == 3 && static_cast<int>(rank) == turn / 4)
          std::this_thread::sleep_for(std::chrono::milliseconds(30));
        options.secret = AsBytes(first->key);
        const Result<RendezvousResult> second = JoinRendezvous(options);
        if (!second.ok()) return void(errors[rank] = second.status().ToString());
        if (second->key == first->key) errors[rank] = "the same key";
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const std::string& error : errors) EXPECT_EQ(error, "") << "turn " << turn;
  }
}

// A child between fork and exec has a copy of all descriptors for a moment.
TEST(RendezvousTest, AForkThatHoldsTheListenerDoesNotKeepTheAddress) {
  const std::string address = FreeLocalAddress();
  Result<RendezvousResult> guest = Internal("did not run");
  Result<RendezvousResult> host = Internal("did not run");
  std::thread hosting([&] { host = JoinRendezvous(Options(0, 2, address)); });
  // If it can be called, rank 0 listens.
  const Deadline deadline = Deadline::After(30);
  ASSERT_TRUE(wire::Connect(address, deadline).ok());
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  guest = JoinRendezvous(Options(1, 2, address));
  hosting.join();
  ExpectMet(host, 2);
  ExpectMet(guest, 2);
  for (const auto& result : JoinAll(WholeJob(2, address))) ExpectMet(result, 2);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

// As many ranks as the answer is made for, all at once. Notes of the maximal length are too much for the answer.
TEST(RendezvousTest, HundredsOfRanksMeetUnlessTheirNotesAreTooMuchTogether) {
  constexpr int kSize = 300;
  const std::string address = FreeLocalAddress();
  for (const size_t bytes : {size_t{4096}, kMaxNoteBytes}) {
    auto all = WholeJob(kSize, address);
    for (auto& options : all) options.note.resize(bytes, 'n');
    const auto results = JoinAll(all);
    for (int rank = 0; rank < kSize; ++rank) {
      if (bytes < kMaxNoteBytes) {
        ASSERT_TRUE(results[rank].ok()) << results[rank].status().ToString();
        EXPECT_EQ(results[rank]->notes[kSize - 1], all[kSize - 1].note);
      } else {
        EXPECT_EQ(results[rank].status().code(), StatusCode::kInvalidArgument) << results[rank].status().ToString();
      }
    }
  }
  auto options = Options(0, 1, address);
  options.note.resize(kMaxNoteBytes + 1);
  EXPECT_EQ(JoinRendezvous(options).status().code(), StatusCode::kInvalidArgument);
}

// A guest may make rank 0 keep less than rank 0 has to send to it.
TEST(RendezvousWireTest, TheLongestFrameDependsOnTheDirection) {
  const Digest key = Sha256("key");
  const std::string body(wire::kMaxHelloBytes + 1, 'b');
  for (const auto direction : {wire::Direction::kToHost, wire::Direction::kToGuest}) {
    const auto parsed = wire::ParseFrame(key, direction, wire::MakeFrame(key, direction, body));
    EXPECT_EQ(parsed.ok(), direction == wire::Direction::kToGuest);
  }
}

// A program that listens in rank 0's place announces the longest frame, sends its beginning, and no more.
TEST(RendezvousWireTest, WhatIsPromisedAndDoesNotComeTakesNoMemory) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
  const UniqueFd ours(fds[0]), theirs(fds[1]);
  const std::string start = std::string("\0\0\x40\0", 4) + std::string(1000, 'x');
  ASSERT_EQ(send(theirs.get(), start.data(), start.size(), 0), static_cast<ssize_t>(start.size()));
  const size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
  std::atomic<bool> waits = false;
  size_t during = 0;
  std::thread reader([&] {
    waits = true;
    (void)wire::ReceiveFrame(ours.get(), Digest{}, wire::Direction::kToGuest, Deadline::After(0.3));
  });
  while (!waits) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  during = mallinfo2().uordblks + mallinfo2().hblkhd;
  reader.join();
  EXPECT_LT(during, before + (1 << 20));
}

TEST(RendezvousWireTest, MessagesComeBackAndPiecesOfThemAreRefused) {
  const wire::Answer answer = {Aborted("why"), "nonce", {"a", "", std::string(100, 'b')}, {"", "::1"}};
  const std::string bytes = wire::Encode(answer);
  const auto decoded = wire::DecodeAnswer(bytes);
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->status, answer.status);
  EXPECT_EQ(decoded->notes, answer.notes);
  EXPECT_EQ(decoded->addresses, answer.addresses);
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(wire::DecodeAnswer(bytes.substr(0, size)).has_value());
  EXPECT_FALSE(wire::DecodeAnswer(bytes + "x").has_value());
}

// A changed bit in the length asks for more bytes, or too many, or truncates the body. Anywhere else it makes the tag
// wrong.
TEST(RendezvousWireTest, AFrameHoldsAgainstEveryChangedByte) {
  const Digest key = Sha256("key");
  const std::string frame = wire::MakeFrame(key, wire::Direction::kToHost, "body");
  EXPECT_EQ(**wire::ParseFrame(key, wire::Direction::kToHost, frame), "body");
  EXPECT_FALSE(wire::ParseFrame(key, wire::Direction::kToGuest, frame).ok()) << "sent back to its sender";
  for (size_t i = 0; i < frame.size(); ++i) {
    std::string changed = frame;
    changed[i] ^= 1;
    const auto parsed = wire::ParseFrame(key, wire::Direction::kToHost, changed);
    EXPECT_TRUE(!parsed.ok() || !parsed->has_value()) << "byte " << i;
  }
}

}  // namespace
}  // namespace lockstep
