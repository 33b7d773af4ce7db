// Promise of this file (security.md): only processes of the job's user and secret map its memory.

#include "core/comm/shm/mesh.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <thread>

#include "core/comm/shm/segment.h"

namespace lockstep::shm {
namespace {

// Makes a connection that sends nothing.
UniqueFd CallSilently(const std::string& name, const Deadline& deadline) {
  UniqueFd caller(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  while (connect(caller.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 && errno == EAGAIN &&
         !deadline.Passed()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return caller;
}

// Each silent caller costs a descriptor: if there are many, the first are disconnected while rank 0 waits for rank 1.
TEST(MeshTest, SilentCallersAreLimitedInNumberAndDisturbNobody) {
  const Deadline deadline = Deadline::After(30);
  const Digest key = Sha256("key");
  Result<Mesh> first = Mesh::Listen(), second = Mesh::Listen();
  ASSERT_TRUE(first.ok() && second.ok());
  const std::vector<std::string> names = {first->name(), second->name()};
  Result<Peers> joined = Internal("did not run");
  std::thread rank_0([&] { joined = first->Join(0, names, key, deadline); });
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 200; ++i) strangers.push_back(CallSilently(names[0], deadline));
  pollfd entry = {strangers[0].get(), POLLIN, 0};
  EXPECT_EQ(poll(&entry, 1, deadline.PollMs()), 1) << "the first stranger is still connected";
  const Result<Peers> other = second->Join(1, names, key, deadline);
  rank_0.join();
  EXPECT_TRUE(joined.ok()) << joined.status().ToString();
  EXPECT_TRUE(other.ok()) << other.status().ToString();
}

// A rank's note may contain anything.
TEST(MeshTest, ANameThatIsLongerThanAnyIsOneThatNobodyListensAt) {
  Result<Mesh> mesh = Mesh::Listen();
  ASSERT_TRUE(mesh.ok());
  const Result<Peers> joined =
      mesh->Join(1, {std::string(1000, 'x'), mesh->name()}, Sha256("key"), Deadline::After(30));
  EXPECT_EQ(joined.status().code(), StatusCode::kUnavailable);
}

// Two ends of a local connection.
struct Pipe {
  Pipe() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    rank_0 = UniqueFd(ends[0]);
    rank_2 = UniqueFd(ends[1]);
  }
  UniqueFd rank_0, rank_2;
};

TEST(MeshTest, MemoryIsTakenFromWhoKnowsTheKeyAndMeansThisRank) {
  const Result<UniqueFd> memory = Segment::Make(Layout{.size = 2, .heap_bytes = 0});
  ASSERT_TRUE(memory.ok());
  struct stat made = {}, got = {};
  ASSERT_EQ(fstat(memory->get(), &made), 0);
  const Digest key = Sha256("key");
  const auto hand_over = [&](const Digest& with, int to) {
    const Pipe pipe;
    EXPECT_EQ(SendFd(pipe.rank_0.get(), *memory, with, to), OkStatus());
    return ReceiveFd(pipe.rank_2.get(), key, 2, Deadline::After(30));
  };
  const Result<UniqueFd> good = hand_over(key, 2);
  ASSERT_TRUE(good.ok()) << good.status().ToString();
  ASSERT_EQ(fstat(good->get(), &got), 0);
  EXPECT_EQ(got.st_ino, made.st_ino);
  EXPECT_EQ(hand_over(Sha256("another"), 2).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(hand_over(key, 1).status().code(), StatusCode::kFailedPrecondition);
  Pipe closed;
  closed.rank_0 = {};
  EXPECT_EQ(ReceiveFd(closed.rank_2.get(), key, 2, Deadline::After(30)).status().code(), StatusCode::kUnavailable);
  const Pipe without;  // the right proof, but no memory
  const Digest proof = HmacSha256(AsBytes(key), "lockstep memory:0>2");
  ASSERT_EQ(send(without.rank_0.get(), proof.data(), proof.size(), 0), static_cast<ssize_t>(proof.size()));
  EXPECT_EQ(ReceiveFd(without.rank_2.get(), key, 2, Deadline::After(30)).status().code(), StatusCode::kUnavailable);
}

// With another rank's proof, or one for another rank, a caller does not become a peer.
TEST(MeshTest, AProofForAnotherRankIsHungUpOn) {
  const Deadline deadline = Deadline::After(30);
  const Digest key = Sha256("key");
  Result<Mesh> first = Mesh::Listen(), second = Mesh::Listen();
  ASSERT_TRUE(first.ok() && second.ok());
  const std::vector<std::string> names = {first->name(), second->name()};
  Result<Peers> joined = Internal("did not run");
  std::thread rank_0([&] { joined = first->Join(0, names, key, deadline); });
  struct {
    int32_t rank = 1;
    Digest proof;
  } introduction;
  for (const Digest& proof : {HmacSha256(AsBytes(key), "lockstep mesh:1>2"), HmacSha256("", "lockstep mesh:1>0")}) {
    introduction.proof = proof;
    const UniqueFd stranger = CallSilently(names[0], deadline);
    ASSERT_EQ(send(stranger.get(), &introduction, sizeof(introduction), 0), static_cast<ssize_t>(sizeof(introduction)));
    pollfd entry = {stranger.get(), POLLIN, 0};
    EXPECT_EQ(poll(&entry, 1, deadline.PollMs()), 1);
    EXPECT_TRUE(entry.revents & POLLHUP);
  }
  EXPECT_TRUE(second->Join(1, names, key, deadline).ok());
  rank_0.join();
  EXPECT_TRUE(joined.ok()) << joined.status().ToString();
}

TEST(SegmentTest, IsReadableAndWritableForItsUserAlone) {
  const Result<UniqueFd> memory = Segment::Make(Layout{.size = 2, .heap_bytes = 0});
  ASSERT_TRUE(memory.ok());
  struct stat info = {};
  ASSERT_EQ(fstat(memory->get(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600);
}

}  // namespace
}  // namespace lockstep::shm
