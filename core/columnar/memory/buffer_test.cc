#include "core/columnar/memory/buffer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

namespace lockstep::columnar {
namespace {

TEST(BufferTest, MemoryIsAlignedWritableAndOutlivesACopy) {
  for (const int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{63}, int64_t{64}, int64_t{1} << 22}) {
    void* data = nullptr;
    auto buffer = AllocateBuffer(bytes, &data);
    ASSERT_TRUE(buffer.ok()) << buffer.status().ToString();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % kBufferAlignment, 0u);
    EXPECT_EQ(buffer->data, data);
    EXPECT_EQ(buffer->bytes, bytes);
    std::memset(data, 7, static_cast<size_t>(bytes));
    const Buffer copy = *buffer;
    *buffer = Buffer();
    if (bytes > 0) {
      EXPECT_EQ(copy.as<char>()[bytes - 1], 7);
    }
  }
}

TEST(BufferTest, MoreThanThereIsIsAnErrorWithTheSize) {
  if (LOCKSTEP_SANITIZED) GTEST_SKIP() << "sanitizers end a process that asks for so much";
  void* data = nullptr;
  const int64_t bytes = std::numeric_limits<int64_t>::max() / 2;
  const auto buffer = AllocateBuffer(bytes, &data);
  EXPECT_EQ(buffer.status().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(buffer.status().message().find(std::to_string(bytes)), std::string::npos);
}

TEST(BufferTest, AnotherAllocatorServesLaterBuffersOnly) {
  void* before = nullptr;
  const auto old = AllocateBuffer(100, &before);
  ASSERT_TRUE(old.ok());
  static char memory[kBufferAlignment];
  UseAllocator([](int64_t bytes, void** data) -> Result<Buffer> {
    *data = memory;
    return Buffer{memory, bytes, nullptr};
  });
  void* after = nullptr;
  const auto served = AllocateBuffer(10, &after);
  ASSERT_TRUE(served.ok());
  EXPECT_EQ(after, memory);
  EXPECT_EQ(old->data, before);
}

}  // namespace
}  // namespace lockstep::columnar
