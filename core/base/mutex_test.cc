#include "core/base/mutex.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

namespace lockstep {
namespace {

using std::chrono::milliseconds;

void OnThreads(int count, const std::function<void()>& work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
}

TEST(Mutex, AdmitsOneThread) {
  Mutex mutex;
  int64_t count = 0;
  OnThreads(4, [&] {
    for (int i = 0; i < 10'000; ++i) {
      const MutexLock lock(mutex);
      ++count;
    }
  });
  EXPECT_EQ(count, 40'000);
}

TEST(Mutex, IsFreeWhileItsLockIsOpen) {
  Mutex mutex;
  const auto is_free = [&] {
    bool taken = false;
    std::thread([&] {
      if (mutex.try_lock()) {
        taken = true;
        mutex.unlock();
      }
    }).join();
    return taken;
  };
  {
    MutexLock lock(mutex);
    EXPECT_FALSE(is_free());
    lock.unlock();
    EXPECT_TRUE(is_free());
    lock.lock();
    EXPECT_FALSE(is_free());
  }
  EXPECT_TRUE(is_free());
  {
    MutexLock lock(mutex);
    lock.unlock();
  }
  EXPECT_TRUE(is_free());
}

TEST(SharedMutex, AdmitsReadersOrOneWriter) {
  SharedMutex mutex;
  std::atomic<int> readers = 0;
  int64_t count = 0;
  OnThreads(4, [&] {
    for (int i = 0; i < 2'000; ++i) {
      {
        const WriterLock lock(mutex);
        EXPECT_EQ(readers, 0);
        ++count;
      }
      const ReaderLock lock(mutex);
      ++readers;
      EXPECT_GE(count, 0);
      --readers;
    }
  });
  EXPECT_EQ(count, 8'000);
  // Two readers at a time: this thread and another.
  const ReaderLock lock(mutex);
  std::thread([&] { const ReaderLock other(mutex); }).join();
}

TEST(CondVar, WakesWaitersWithTheMutexHeld) {
  Mutex mutex;
  CondVar changed;
  int turn = 0;
  const auto play = [&](int mine) {
    for (int i = 0; i < 1'000; ++i) {
      const MutexLock lock(mutex);
      while (turn % 2 != mine) changed.Wait(mutex);
      ++turn;
      changed.NotifyAll();
    }
  };
  std::thread other(play, 1);
  play(0);
  other.join();
  EXPECT_EQ(turn, 2'000);
}

TEST(CondVar, WaitsEndInTime) {
  Mutex mutex;
  CondVar changed;
  const MutexLock lock(mutex);
  const auto begin = std::chrono::steady_clock::now();
  while (changed.WaitFor(mutex, milliseconds(20))) {
  }
  while (changed.WaitUntil(mutex, begin + milliseconds(40))) {
  }
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(40));
  std::thread([&] { EXPECT_FALSE(mutex.try_lock()); }).join();
}

}  // namespace
}  // namespace lockstep
