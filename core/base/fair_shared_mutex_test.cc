#include "core/base/fair_shared_mutex.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace lockstep {
namespace {

// Two readers take turns so that one of them always holds the mutex; the writer still gets it.
TEST(FairSharedMutex, WriterIsNotKeptOutByReaders) {
  FairSharedMutex mutex;
  std::atomic<bool> written{false};
  std::atomic<int> held{0};
  const auto read = [&] {
    while (!written) {
      const ReaderLock lock(mutex);
      ++held;
      // Until the other reader has it as well: it never comes if a writer waits in between.
      for (int i = 0; i < 1000 && held < 2 && !written; ++i) std::this_thread::yield();
      --held;
    }
  };
  std::thread first(read), second(read);
  {
    const WriterLock lock(mutex);
    EXPECT_EQ(held, 0);
    written = true;
  }
  first.join();
  second.join();
}

TEST(FairSharedMutex, ExcludesWritersFromAll) {
  FairSharedMutex mutex;
  int64_t number LOCKSTEP_GUARDED_BY(mutex) = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        if (i % 2 == 0) {
          const WriterLock lock(mutex);
          ++number;
        } else {
          const ReaderLock lock(mutex);
          EXPECT_GT(number, 0);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const ReaderLock lock(mutex);
  EXPECT_EQ(number, 2000);
}

}  // namespace
}  // namespace lockstep
