#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/strings.h"
#include "core/comm/liveness/watch.h"
#include "core/comm/rendezvous/rendezvous.h"
#include "core/testing/ranks.h"

// Makes the jobs of the watch's tests. A test defines the work of each rank; this runs it on processes that have joined
// a rendezvous and watch each other.
// ```cpp
// WatchJob job(4, [](Scene& scene) -> std::string {
//   if (scene.rank == 2) testing::DieNow();
//   return ExpectEnd(scene, StatusCode::kUnavailable, "rank 2 of the test (process ", 5);
// });
// job.ExpectWell({2});
// ```
namespace lockstep {

// Short, so that the tests are short, and longer than a busy machine keeps a process from running. Sanitizers make
// everything slower.
inline constexpr double kSilence_s = LOCKSTEP_SANITIZED ? 5 : 2.5;
inline constexpr double kBeat_s = kSilence_s / 8;
// The time in which an immediately visible event has to be known to all, even on a busy machine. The texts show that it
// was seen, and not found by silence.
inline constexpr double kAtOnce_s = LOCKSTEP_SANITIZED ? 40 : 20;
inline constexpr double kWatchDeadline_s = LOCKSTEP_SANITIZED ? 120 : 60;

inline void SleepFor(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// Memory that the test and all of its ranks share.
struct Board {
  std::atomic<int> ready{0};
  std::atomic<int> done{0};
  std::atomic<int> pid{0};        // of a process that another process acts on
  std::atomic<int64_t> fault{0};  // time of an event, in ns of the monotonic clock, which all processes share
  void Now() { fault = std::chrono::steady_clock::now().time_since_epoch().count(); }
  double SinceFault() const {
    return static_cast<double>(std::chrono::steady_clock::now().time_since_epoch().count() - fault) / 1e9;
  }
  // Waits until `count` is at least `all`.
  static void Await(const std::atomic<int>& count, int all) {
    while (count < all) SleepFor(0.001);
  }
};

// The data of a rank of such a job.
struct Scene {
  int rank = 0;
  int size = 0;
  Board* board = nullptr;
  std::vector<std::string> places = {};
  // Copies of the watch's connections, [R], to write what a watch would not.
  std::vector<UniqueFd> raw = {};
  Watch* watch = nullptr;

  // The arguments of on_verdict.
  Mutex mutex = {};
  std::vector<Status> verdicts LOCKSTEP_GUARDED_BY(mutex) = {};
  std::atomic<int> ticks{0};
  std::function<void()> also_on_verdict LOCKSTEP_GUARDED_BY(mutex) = {};
};

// Returns "" or the error.
using ScenePart = std::function<std::string(Scene&)>;

// Waits for the verdict and returns how it differs from the expected one: its code, the beginning of its text, and its
// time in seconds after the fault.
inline std::string ExpectEnd(Scene& scene, StatusCode code, const std::string& text, double within_s) {
  scene.watch->AwaitFate(scene.rank, kWatchDeadline_s);
  const double after_s = scene.board->SinceFault();
  const Status verdict = scene.watch->verdict();
  if (verdict.code() != code || !verdict.message().starts_with(text)) {
    return StrCat("rank ", scene.rank, ": ", verdict.ToString(), ", expected ", StatusCodeName(code), " ", text, "\n");
  }
  if (after_s > within_s)
    return StrCat("rank ", scene.rank, " knew it after ", after_s, " s: ", verdict.ToString(), "\n");
  // The callback comes after the verdict.
  for (int i = 0; i < 30000; ++i, SleepFor(0.001)) {
    const MutexLock lock(scene.mutex);
    if (!scene.verdicts.empty()) break;
  }
  const MutexLock lock(scene.mutex);
  if (scene.verdicts != std::vector<Status>{verdict}) {
    return StrCat("rank ", scene.rank, ": on_verdict was called ", scene.verdicts.size(), " times\n");
  }
  return "";
}

class WatchJob {
 public:
  WatchJob(int size, const ScenePart& part)
      : ranks_(size, [=, board = &*board_, address = testing::FreeLocalAddress()](
                         int rank, const testing::Ranks::Report& report) {
          const std::string error = Play(rank, size, address, board, part);
          report(error);
          return error.empty() ? 0 : 1;
        }) {}

  Board& board() { return *board_; }
  pid_t pid(int rank) const { return ranks_.pid(rank); }

  void ExpectWell(const std::vector<int>& victims = {}) {
    const std::vector<testing::Outcome> outcomes = ranks_.Wait(kWatchDeadline_s, victims);
    for (int rank = 0; rank < static_cast<int>(outcomes.size()); ++rank) {
      if (std::find(victims.begin(), victims.end(), rank) != victims.end()) continue;
      EXPECT_TRUE(outcomes[rank].ended) << "rank " << rank << " was killed at the deadline";
      EXPECT_EQ(outcomes[rank].exit_code, 0)
          << "rank " << rank << ", signal " << outcomes[rank].signal.value_or(0) << ": " << outcomes[rank].report;
    }
  }

 private:
  static std::string Play(int rank, int size, const std::string& address, Board* board, const ScenePart& part) {
    Result<RendezvousResult> rendezvous =
        JoinRendezvous({.rank = rank,
                        .size = size,
                        .address = address,
                        .secret = "the secret of the tests",
                        .note = StrCat("rank ", rank, " of the test (process ", getpid(), ")"),
                        .timeout_s = 30,
                        .keep_connections = true});
    if (!rendezvous.ok()) return rendezvous.status().ToString();
    Scene scene = {.rank = rank, .size = size, .board = board, .places = rendezvous->notes};
    for (const UniqueFd& socket : rendezvous->connections) {
      scene.raw.emplace_back(socket.valid() ? fcntl(socket.get(), F_DUPFD_CLOEXEC, 0) : -1);
    }
    Watch watch(
        {.rank = rank,
         .size = size,
         .key = rendezvous->key,
         .places = rendezvous->notes,
         .silence_s = kSilence_s,
         .beat_s = kBeat_s,
         .leave_s = kWatchDeadline_s},
        std::move(rendezvous->connections),
        [&](const Status& why) {
          const MutexLock lock(scene.mutex);
          scene.verdicts.push_back(why);
          if (scene.also_on_verdict) scene.also_on_verdict();
        },
        [&] { ++scene.ticks; });
    scene.watch = &watch;
    ++board->ready;
    Board::Await(board->ready, size);
    return part(scene);
  }

  const testing::Shared<Board> board_;
  testing::Ranks ranks_;
};

}  // namespace lockstep
