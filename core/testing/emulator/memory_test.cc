#include "core/testing/emulator/memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "core/testing/emulator/stream.h"

namespace lockstep::emulator {
namespace {

class MemoryTest : public testing::Test {
 protected:
  MemoryTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

// Promise (gpu.md): a host that follows a pointer of an emulated device ends at once.
TEST_F(MemoryTest, TheHostCannotTouchIt) {
  if (UsesHeap()) GTEST_SKIP() << "with the address sanitizer the memory lies in the heap";
  auto* const memory = static_cast<volatile char*>(AllocateOnDevice(0, 100));
  EXPECT_DEATH(memory[0] = 1, "");
  EXPECT_DEATH((void)memory[99], "");
  {
    const MemoryAccess access;
    memory[0] = 1;
  }
  EXPECT_DEATH((void)memory[0], "");
  EXPECT_TRUE(FreeOnDevice(const_cast<char*>(memory)));
}

TEST_F(MemoryTest, WorkOfStreamsTouchesItButCallsOfTheHostDoNot) {
  auto* const memory = static_cast<volatile char*>(AllocateOnDevice(0, 100));
  Stream stream(0);
  stream.Post([memory] { memory[5] = 7; });
  char seen = 0;
  stream.Post([memory, &seen] { seen = memory[5]; });
  stream.Drain();
  EXPECT_EQ(seen, 7);
  if (!UsesHeap()) {
    EXPECT_DEATH(
        {
          Stream other(0);
          other.PostForHost([memory] { memory[5] = 7; });
          other.Drain();
        },
        "");
  }
  EXPECT_TRUE(FreeOnDevice(const_cast<char*>(memory)));
}

TEST_F(MemoryTest, NewMemoryIsPoison) {
  void* const memory = AllocateOnDevice(0, 1000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 256, 0U);
  {
    const MemoryAccess access;
    for (int i = 0; i < 1000; ++i) EXPECT_EQ(static_cast<unsigned char*>(memory)[i], kNewByte);
  }
  EXPECT_TRUE(FreeOnDevice(memory));
}

TEST_F(MemoryTest, FreedMemoryIsPoison) {
  auto* const memory = static_cast<unsigned char*>(AllocateOnDevice(0, 1000));
  EXPECT_TRUE(FreeOnDevice(memory));
  const MemoryAccess access;
  if (UsesHeap()) {
    EXPECT_DEATH((void)*static_cast<volatile unsigned char*>(memory), "heap-use-after-free");
  } else {
    EXPECT_EQ(memory[0], kFreedByte);
    EXPECT_EQ(memory[999], kFreedByte);
  }
  EXPECT_FALSE(FreeOnDevice(memory));
}

TEST_F(MemoryTest, FindsAnAccessOutOfBounds) {
  if (!UsesHeap()) GTEST_SKIP() << "only the address sanitizer (make asan) sees it";
  auto* const memory = static_cast<char*>(AllocateOnDevice(0, 100));
  EXPECT_DEATH(*const_cast<volatile char*>(memory + 100) = 1, "heap-buffer-overflow");
  EXPECT_TRUE(FreeOnDevice(memory));
}

TEST_F(MemoryTest, FreedPartsAreJoinedAndUsedAgain) {
  const int64_t all = FreeBytes(0);
  for (int round = 0; round < 3; ++round) {
    std::vector<void*> memories;
    const int64_t quarter = DeviceBytes() / 4 / 256 * 256;
    for (int i = 0; i < 4; ++i) memories.push_back(AllocateOnDevice(0, quarter));
    for (void* memory : memories) EXPECT_NE(memory, nullptr);
    EXPECT_EQ(AllocateOnDevice(0, quarter), nullptr);
    EXPECT_EQ(DeviceOf(memories[2]), 0);
    EXPECT_EQ(DeviceOf(static_cast<char*>(memories[2]) + quarter - 1), 0);
    for (const int i : {2, 0, 1, 3}) EXPECT_TRUE(FreeOnDevice(memories[i]));
    EXPECT_EQ(DeviceOf(memories[2]), -1);
    EXPECT_EQ(FreeBytes(0), all);
    void* const whole = AllocateOnDevice(0, 4 * quarter);
    EXPECT_NE(whole, nullptr);
    EXPECT_TRUE(FreeOnDevice(whole));
  }
}

TEST_F(MemoryTest, AddressesOfTheHostAreOfNoDevice) {
  int local = 0;
  EXPECT_EQ(DeviceOf(&local), -1);
  EXPECT_FALSE(FreeOnDevice(&local));
}

}  // namespace
}  // namespace lockstep::emulator
