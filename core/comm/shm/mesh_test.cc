#include "core/comm/shm/mesh.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <thread>

namespace lockstep::shm {
namespace {

// A connection that says nothing.
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

// Each silent caller costs a descriptor: of many the first are hung up on, while rank 0 still waits for rank 1.
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

// A rank's note may say anything.
TEST(MeshTest, ANameThatIsLongerThanAnyIsOneThatNobodyListensAt) {
  Result<Mesh> mesh = Mesh::Listen();
  ASSERT_TRUE(mesh.ok());
  const Result<Peers> joined =
      mesh->Join(1, {std::string(1000, 'x'), mesh->name()}, Sha256("key"), Deadline::After(30));
  EXPECT_EQ(joined.status().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace lockstep::shm
