#include "core/comm/liveness/watch.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "core/base/deadline.h"
#include "core/comm/liveness/test_watch.h"

// Ends without a message: deaths, silence, forged data. watch_words_test.cc has error messages and farewells.

namespace lockstep {
namespace {

// The failing rank: rank 0, to which all are connected, or another.
class WatchVictimTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, WatchVictimTest, ::testing::Values(0, 2),
                         [](const auto& info) { return StrCat("rank_", info.param); });

TEST_P(WatchVictimTest, ADeathIsSeenByAllAtOnceAndNamed) {
  WatchJob job(4, [victim = GetParam()](Scene& scene) -> std::string {
    if (scene.rank == victim) {
      SleepFor(2 * kBeat_s);
      scene.board->Now();
      testing::DieNow();
    }
    std::string error =
        ExpectEnd(scene, StatusCode::kUnavailable, StrCat(scene.places[victim], " died: its connection "), kAtOnce_s);
    if (scene.watch->fate(victim) != Watch::Fate::kLost) error += "the victim is not lost\n";
    return error;
  });
  job.ExpectWell({GetParam()});
}

TEST_P(WatchVictimTest, AFrozenRankIsGivenUpByAllWhenItsTimeIsOver) {
  WatchJob job(4, [victim = GetParam()](Scene& scene) -> std::string {
    if (scene.rank == victim) {
      scene.board->Now();
      testing::FreezeNow();
    }
    std::string error =
        ExpectEnd(scene, StatusCode::kUnavailable,
                  StrCat(scene.places[victim], " has been silent for ", kSilence_s, " s"), kSilence_s + kAtOnce_s);
    // When it freezes, its last beat is a beat and a turn old, or older on a busy machine.
    if (scene.board->SinceFault() < kSilence_s / 2) error += "it was given up too early\n";
    return error;
  });
  job.ExpectWell({GetParam()});
}

TEST_P(WatchVictimTest, AFrozenRankThatGoesOnHearsThatItWasGivenUp) {
  WatchJob job(3, [victim = GetParam()](Scene& scene) -> std::string {
    if (scene.rank == victim) {
      scene.board->pid = getpid();
      testing::FreezeNow();
      scene.board->Now();
      if (victim != 0)
        return ExpectEnd(scene, StatusCode::kUnavailable, scene.places[victim] + " has been silent for ", kAtOnce_s);
      const std::string error = ExpectEnd(scene, StatusCode::kUnavailable, "rank ", kAtOnce_s);
      const std::string text = scene.watch->verdict().message();
      return text.find(StrCat(" gave up: ", scene.places[0], " has been silent for ")) != std::string::npos ? error
                                                                                                            : text;
    }
    const std::string error =
        ExpectEnd(scene, StatusCode::kUnavailable, scene.places[victim] + " has been silent for ", 1e9);
    // The others end before it resumes; their messages to it wait in its socket.
    scene.watch->Leave();
    if (++scene.board->done == scene.size - 1) {
      SleepFor(kBeat_s);
      kill(scene.board->pid, SIGCONT);
    }
    return error;
  });
  job.ExpectWell();
}

TEST_P(WatchVictimTest, WhoIsSilentForLessThanItsTimeIsWaitedFor) {
  WatchJob job(3, [](Scene& scene) -> std::string {
    scene.watch->AwaitFate(scene.rank, 2 * kSilence_s);
    ++scene.board->done;
    Board::Await(scene.board->done, scene.size);
    return scene.watch->verdict().message();
  });
  Board::Await(job.board().ready, 3);
  kill(job.pid(GetParam()), SIGSTOP);
  SleepFor(kSilence_s / 3);
  kill(job.pid(GetParam()), SIGCONT);
  job.ExpectWell();
}

// As on a laptop that sleeps: no process has received anything from the others, and none did listen.
TEST(WatchTest, ProcessesThatAllStoodStillDoNotAccuseEachOther) {
  WatchJob job(3, [](Scene& scene) -> std::string {
    Board::Await(scene.board->done, 1);
    scene.watch->AwaitFate(scene.rank, kSilence_s * 1.5);
    ++scene.board->done;
    Board::Await(scene.board->done, 1 + scene.size);
    return scene.watch->verdict().message();
  });
  Board::Await(job.board().ready, 3);
  SleepFor(3 * kBeat_s);
  for (int rank = 0; rank < 3; ++rank) kill(job.pid(rank), SIGSTOP);
  SleepFor(2 * kSilence_s);
  job.board().done = 1;
  // Rank 0 resumes some beats earlier, and receives nothing in this time.
  for (int rank = 0; rank < 3; ++rank) {
    kill(job.pid(rank), SIGCONT);
    SleepFor(rank == 0 ? 2 * kBeat_s : 0);
  }
  job.ExpectWell();
}

TEST(WatchTest, DeathsAmongEightRanksAreSeenByThoseThatLive) {
  WatchJob job(8, [](Scene& scene) -> std::string {
    if (scene.rank == 3 || scene.rank == 6) {
      scene.board->Now();
      testing::DieNow();
    }
    return ExpectEnd(scene, StatusCode::kUnavailable, "rank ", kAtOnce_s);
  });
  job.ExpectWell({3, 6});
}

// Code that sees a connection of another kind end asks the watch for the reason.
TEST(WatchTest, WhoWaitsForAFateIsWokenByIt) {
  WatchJob job(3, [](Scene& scene) -> std::string {
    if (scene.rank == 2) {
      Board::Await(scene.board->done, 2);
      testing::DieNow();
    }
    ++scene.board->done;
    scene.board->Now();
    scene.watch->AwaitFate(2, kWatchDeadline_s);
    if (scene.watch->fate(2) != Watch::Fate::kLost || scene.watch->verdict().ok()) return "nothing is known of rank 2";
    return scene.board->SinceFault() < kAtOnce_s ? "" : "it was known late";
  });
  job.ExpectWell({2});
}

TEST(WatchTest, GarbageFromARankIsDataLossThatNamesItOnAll) {
  WatchJob job(3, [](Scene& scene) -> std::string {
    scene.board->Now();
    // The length of a frame, and a forged tag.
    const std::string garbage = std::string("\1\0\0\0b", 5) + std::string(32, 'x');
    if (scene.rank == 2) (void)!write(scene.raw[0].get(), garbage.data(), garbage.size());
    return ExpectEnd(scene, StatusCode::kDataLoss,
                     StrCat("forged or damaged messages from ", scene.places[2], ": a frame with a wrong"), kAtOnce_s);
  });
  job.ExpectWell();
}

TEST(WatchTest, GarbageFromRankZeroIsDataLossThatItHearsOf) {
  WatchJob job(3, [](Scene& scene) -> std::string {
    scene.board->Now();
    const std::string garbage(100, '\xff');
    if (scene.rank == 0) (void)!write(scene.raw[1].get(), garbage.data(), garbage.size());
    const std::string seen = StrCat("forged or damaged messages from ", scene.places[0], ": a frame of ");
    const std::string heard = StrCat(scene.places[1], " gave up: ", seen);
    return ExpectEnd(scene, StatusCode::kDataLoss, scene.rank == 1 ? seen : heard, kAtOnce_s);
  });
  job.ExpectWell();
}

// A connection whose network can be cut: sent data waits until it is restored.
class Cable {
 public:
  Cable() {
    for (auto& [outer, inner] : ends_) {
      int fds[2];
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) != 0) abort();
      outer = UniqueFd(fds[0]);
      inner = UniqueFd(fds[1]);
    }
    relay_ = std::thread([this] {
      while (!stop_) {
        SleepFor(0.005);
        if (cut_) continue;
        for (int from : {0, 1}) {
          char buffer[4096];
          const ssize_t got = read(ends_[from].inner.get(), buffer, sizeof(buffer));
          if (got > 0) (void)!write(ends_[1 - from].inner.get(), buffer, static_cast<size_t>(got));
        }
      }
    });
  }
  ~Cable() {
    stop_ = true;
    relay_.join();
  }
  // Returns the connections for a watch of two ranks, of which this is one.
  std::vector<UniqueFd> Connections(int rank) {
    std::vector<UniqueFd> connections(2);
    connections[1 - rank] = std::move(ends_[rank].outer);
    return connections;
  }
  void Cut(bool cut) { cut_ = cut; }

 private:
  struct End {
    UniqueFd outer, inner;
  };
  End ends_[2];
  std::atomic<bool> cut_{false}, stop_{false};
  std::thread relay_;
};

// Both ranks are in one process: they share only the cable.
TEST(WatchTest, AShortCutOfTheNetworkIsSurvivedAndALongOneIsSeenAtBothEnds) {
  Cable cable;
  const std::vector<std::string> places = {"rank 0 on host a", "rank 1 on host b"};
  const auto options = [&](int rank) {
    return WatchOptions{
        .rank = rank, .size = 2, .key = Sha256("key"), .places = places, .silence_s = kSilence_s, .beat_s = kBeat_s};
  };
  Watch zero(options(0), cable.Connections(0), nullptr, nullptr);
  Watch one(options(1), cable.Connections(1), nullptr, nullptr);
  SleepFor(2 * kBeat_s);
  cable.Cut(true);
  SleepFor(kSilence_s / 3);
  cable.Cut(false);
  SleepFor(kSilence_s);
  EXPECT_TRUE(zero.verdict().ok()) << zero.verdict().ToString();
  EXPECT_TRUE(one.verdict().ok()) << one.verdict().ToString();
  cable.Cut(true);
  zero.AwaitFate(1, kWatchDeadline_s);
  one.AwaitFate(0, kWatchDeadline_s);
  const std::string silent = StrCat(" has been silent for ", kSilence_s, " s: cut off from the network, or frozen");
  EXPECT_EQ(zero.verdict().ToString(), Unavailable(places[1] + silent).ToString());
  EXPECT_EQ(one.verdict().ToString(), Unavailable(places[0] + silent).ToString());
}

// The fork sends nothing, and does not keep the connection open after its parent's death.
TEST(WatchTest, AForkOfARankIsNoPartOfTheWatch) {
  WatchJob job(3, [](Scene& scene) -> std::string {
    if (scene.rank == 1) {
      scene.raw.clear();
      const pid_t child = fork();
      if (child == 0) {
        scene.watch->ReportError(Aborted("a fork"));
        scene.watch->Leave();
        scene.watch->AwaitFate(0, 60);
        scene.watch->~Watch();
        ++scene.board->done;
        alarm(static_cast<unsigned>(kWatchDeadline_s));
        while (true) pause();
      }
      scene.board->pid = child;
      Board::Await(scene.board->done, 1);
      SleepFor(kSilence_s * 1.5);
      if (!scene.watch->verdict().ok()) return scene.watch->verdict().ToString();
      scene.board->Now();
      testing::DieNow();
    }
    std::string error = ExpectEnd(scene, StatusCode::kUnavailable, scene.places[1] + " died", kAtOnce_s);
    if (scene.rank == 0) {
      if (kill(scene.board->pid, SIGKILL) != 0) error += "the fork had ended\n";
    }
    return error;
  });
  job.ExpectWell({1});
}

TEST(WatchTest, ItTicksAndCostsNextToNothing) {
  WatchJob job(8, [](Scene& scene) -> std::string {
    rusage before = {}, after = {};
    getrusage(RUSAGE_SELF, &before);
    const int ticks = scene.ticks;
    const Deadline since = Deadline::After(kWatchDeadline_s);
    SleepFor(1);
    while (scene.ticks < ticks + 5 && !since.Passed()) SleepFor(0.01);
    getrusage(RUSAGE_SELF, &after);
    const int ticked = scene.ticks - ticks;
    const double seconds = since.Elapsed();
    ++scene.board->done;
    Board::Await(scene.board->done, scene.size);
    const auto us = [](const rusage& usage) {
      return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1e6 + usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
    };
    // A thread that spins, or one that sleeps on, is far from these numbers.
    if (ticked < 5 || ticked > 100 * seconds) return StrCat(ticked, " ticks in ", seconds, " s\n");
    const double used_us = us(after) - us(before);
    return used_us < (LOCKSTEP_SANITIZED ? 400e3 : 100e3) * seconds ? "" : StrCat(used_us, " us in ", seconds, " s\n");
  });
  job.ExpectWell();
}

}  // namespace
}  // namespace lockstep
