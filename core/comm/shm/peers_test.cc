#include "core/comm/shm/peers.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/deadline.h"

namespace lockstep::shm {
namespace {

// A process with the other end of a connection, which it closes before it ends. The kernel does the same for a killed
// process, only faster.
class Process {
 public:
  explicit Process(double from_close_to_end_s) {
    int ends[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    pid_ = fork();
    if (pid_ == 0) {
      char byte;
      close(ends[0]);
      (void)!read(ends[1], &byte, 1);
      close(ends[1]);
      usleep(static_cast<useconds_t>(1e6 * from_close_to_end_s));
      _exit(0);
    }
    close(ends[1]);
    socket_ = ends[0];
    peers_.Add(1, UniqueFd(ends[0]), UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0))), pid_);
  }
  ~Process() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  void Signal(int signal) const { kill(pid_, signal); }
  // Waits until it is seen as stopped, or as not stopped.
  bool AwaitStopped(bool stopped) const {
    const Deadline deadline = Deadline::After(30);
    while (peers_.IsStopped(1) != stopped && !deadline.Passed()) usleep(1000);
    return peers_.IsStopped(1) == stopped;
  }
  pid_t pid() const { return pid_; }
  void LetClose() { (void)!write(socket_, "x", 1); }
  Peers::Fate Await() const {
    const Deadline deadline = Deadline::After(30);
    Peers::Fate fate = Peers::Fate::kAlive;
    while (fate == Peers::Fate::kAlive && !deadline.Passed()) fate = peers_.Look(1);
    return fate;
  }
  const Peers& peers() const { return peers_; }

 private:
  Peers peers_;
  pid_t pid_;
  int socket_;
};

TEST(PeersTest, AProcessThatEndsHasDiedThoughItsConnectionIsClosedFirst) {
  Process process(0.02);
  EXPECT_EQ(process.peers().Look(1), Peers::Fate::kAlive);
  process.LetClose();
  EXPECT_EQ(process.Await(), Peers::Fate::kDied);
}

TEST(PeersTest, OneThatLivesHasClosedItsConnection) {
  Process process(60);
  process.LetClose();
  EXPECT_EQ(process.Await(), Peers::Fate::kDisconnected);
}

TEST(PeersTest, AStoppedProcessIsSeenUntilItGoesOnOrEnds) {
  const Process process(60);
  EXPECT_FALSE(process.peers().IsStopped(1));
  for (int i = 0; i < 2; ++i) {
    process.Signal(SIGSTOP);
    EXPECT_TRUE(process.AwaitStopped(true));
    EXPECT_EQ(process.peers().Look(1), Peers::Fate::kAlive);
    process.Signal(SIGCONT);
    EXPECT_TRUE(process.AwaitStopped(false));
  }
  process.Signal(SIGSTOP);
  EXPECT_TRUE(process.AwaitStopped(true));
  process.Signal(SIGKILL);
  EXPECT_EQ(process.Await(), Peers::Fate::kDied);
  EXPECT_FALSE(process.peers().IsStopped(1));
}

TEST(PeersTest, OneThatADebuggerHoldsIsNotStopped) {
  const Process process(60);
  if (ptrace(PTRACE_SEIZE, process.pid(), nullptr, nullptr) != 0) GTEST_SKIP() << "debugging is not allowed here";
  ASSERT_EQ(ptrace(PTRACE_INTERRUPT, process.pid(), nullptr, nullptr), 0);
  int status = 0;
  ASSERT_EQ(waitpid(process.pid(), &status, 0), process.pid());
  EXPECT_TRUE(WIFSTOPPED(status));
  EXPECT_FALSE(process.peers().IsStopped(1));
}

// This rank itself, and a rank whose process number is another process's or unused here.
TEST(PeersTest, OneThatCannotBeSeenIsNotStopped) {
  Peers peers;
  EXPECT_FALSE(peers.IsStopped(0));
  peers.Add(1, UniqueFd(), UniqueFd(), 0);
  EXPECT_FALSE(peers.IsStopped(1));
}

}  // namespace
}  // namespace lockstep::shm
