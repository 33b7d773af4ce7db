#include "core/base/not_in_forks.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "core/base/unique_fd.h"

namespace lockstep {
namespace {

// A child process that runs until the test releases it. Its exit code is its result.
class Child {
 public:
  template <typename Body>
  explicit Child(Body body) {
    EXPECT_EQ(pipe(gate_), 0);
    pid_ = fork();
    if (pid_ != 0) return;
    close(gate_[1]);
    const int code = body();
    char byte;
    (void)!read(gate_[0], &byte, 1);
    _exit(code);
  }
  int End() {
    close(gate_[1]);
    close(gate_[0]);
    int status = 0;
    waitpid(pid_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  int gate_[2];
  pid_t pid_;
};

bool SeesEnd(int socket, int wait_ms = 0) {
  pollfd entry = {socket, POLLIN, 0};
  char byte;
  return poll(&entry, 1, wait_ms) > 0 && recv(socket, &byte, 1, MSG_DONTWAIT) == 0;
}

// A second socket, which is not kept from forks, shows the behaviour without NotInForks.
TEST(NotInForksTest, AConnectionEndsWithItsProcessThoughAForkOfItLives) {
  int kept[2], shared[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, kept), 0);
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, shared), 0);
  const UniqueFd kept_peer(kept[1]), shared_peer(shared[1]);
  UniqueFd ours(kept[0]), others(shared[0]);
  auto keep = std::make_unique<NotInForks>(std::vector<int>{ours.get(), -1});
  // The child can use the descriptor, without effect.
  Child child([&] { return write(ours.get(), "x", 1) == 1 && fcntl(ours.get(), F_GETFD) == FD_CLOEXEC ? 0 : 1; });
  EXPECT_FALSE(SeesEnd(kept_peer.get())) << "the fork ended the connection of its parent";
  EXPECT_EQ(send(ours.get(), "y", 1, 0), 1);
  char byte = 0;
  EXPECT_EQ(recv(kept_peer.get(), &byte, 1, 0), 1);
  EXPECT_EQ(byte, 'y');
  keep.reset();
  ours = UniqueFd();
  others = UniqueFd();
  EXPECT_TRUE(SeesEnd(kept_peer.get(), 10000));
  EXPECT_FALSE(SeesEnd(shared_peer.get()));
  EXPECT_EQ(child.End(), 0);
}

TEST(NotInForksTest, WhatIsNoLongerKeptIsTheForksOwn) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
  const UniqueFd ours(pair[0]), peer(pair[1]);
  { const NotInForks keep({ours.get()}); }
  Child child([&] { return send(ours.get(), "x", 1, MSG_NOSIGNAL) == 1 ? 0 : 1; });
  EXPECT_EQ(child.End(), 0);
  char byte = 0;
  EXPECT_EQ(recv(peer.get(), &byte, 1, MSG_DONTWAIT), 1);
}

}  // namespace
}  // namespace lockstep
