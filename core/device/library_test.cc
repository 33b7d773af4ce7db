#include "core/device/library.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <limits>
#include <new>
#include <string>
#include <thread>
#include <vector>

extern "C" const lockstep::device::Library* lockstep_device_library();

namespace lockstep::device {
namespace {

class LibraryTest : public testing::Test {
 protected:
  LibraryTest() {
    EXPECT_EQ(library_.set_device(0), kSuccess);
    EXPECT_EQ(library_.create_stream(&stream_), kSuccess);
  }
  ~LibraryTest() override { EXPECT_EQ(library_.destroy_stream(stream_), kSuccess); }
  void Wait() { EXPECT_EQ(library_.synchronize_stream(stream_), kSuccess); }

  const Library& library_ = *lockstep_device_library();
  Stream stream_ = nullptr;
};

// A member that nobody set is null.
TEST_F(LibraryTest, HasAllFunctions) {
  const auto* const members = reinterpret_cast<const void* const*>(&library_);
  for (size_t i = 0; i < sizeof(Library) / sizeof(void*); ++i) EXPECT_NE(members[i], nullptr) << "member " << i;
  EXPECT_STREQ(library_.interface_id, InterfaceId());
}

TEST_F(LibraryTest, DescribesDevices) {
  int count = 0, version = 0, device = -1;
  const char* why = nullptr;
  EXPECT_EQ(library_.device_count(&count, &why), kSuccess);
  EXPECT_EQ(count, 1);
  EXPECT_STREQ(why, "");
  EXPECT_EQ(library_.driver_version(&version), kSuccess);
  EXPECT_EQ(version, 13000);
  Properties properties;
  EXPECT_EQ(library_.properties(0, &properties), kSuccess);
  EXPECT_STREQ(properties.name, "emulated device 0");
  EXPECT_EQ(properties.major, 9);
  EXPECT_GT(properties.multiprocessors, 0);
  EXPECT_EQ(properties.memory_bytes, int64_t{1} << 30);
  EXPECT_LE(properties.free_bytes, properties.memory_bytes);
  EXPECT_NE(library_.properties(1, &properties), kSuccess);
  bool can = true;
  EXPECT_EQ(library_.can_access_peer(0, 0, &can), kSuccess);
  EXPECT_FALSE(can);
  EXPECT_NE(library_.set_device(7), kSuccess);
  EXPECT_EQ(library_.get_device(&device), kSuccess);
  EXPECT_EQ(device, 0);
}

TEST_F(LibraryTest, EventsOrderAndTimeWork) {
  Stream other = nullptr;
  EXPECT_EQ(library_.create_stream(&other), kSuccess);
  Event begin = nullptr, end = nullptr;
  EXPECT_EQ(library_.create_event(true, &begin), kSuccess);
  EXPECT_EQ(library_.create_event(true, &end), kSuccess);
  std::atomic<bool> is_open = false;
  EXPECT_EQ(library_.record_event(begin, stream_), kSuccess);
  const auto wait = [](void* flag) { static_cast<std::atomic<bool>*>(flag)->wait(false); };
  EXPECT_EQ(library_.call_host(stream_, wait, &is_open), kSuccess);
  EXPECT_EQ(library_.record_event(end, stream_), kSuccess);
  EXPECT_EQ(library_.wait_event(other, end), kSuccess);
  bool has_passed = true, is_idle = true;
  EXPECT_EQ(library_.has_passed(end, &has_passed), kSuccess);
  EXPECT_FALSE(has_passed);
  EXPECT_EQ(library_.is_idle(other, &is_idle), kSuccess);
  EXPECT_FALSE(is_idle);
  is_open = true;
  is_open.notify_all();
  EXPECT_EQ(library_.synchronize_event(end), kSuccess);
  EXPECT_EQ(library_.synchronize_stream(other), kSuccess);
  EXPECT_EQ(library_.has_passed(end, &has_passed), kSuccess);
  EXPECT_TRUE(has_passed);
  EXPECT_EQ(library_.is_idle(other, &is_idle), kSuccess);
  EXPECT_TRUE(is_idle);
  float ms = -1;
  EXPECT_EQ(library_.elapsed_ms(begin, end, &ms), kSuccess);
  EXPECT_GE(ms, 0);
  EXPECT_EQ(library_.destroy_event(begin), kSuccess);
  EXPECT_EQ(library_.destroy_event(end), kSuccess);
  EXPECT_EQ(library_.destroy_stream(other), kSuccess);
}

TEST_F(LibraryTest, AStreamWaitsForANumberOrALaterOne) {
  void* memory = nullptr;
  EXPECT_EQ(library_.allocate_pinned(sizeof(uint32_t), &memory), kSuccess);
  auto* const number = new (memory) uint32_t(0xfffffffe);
  const auto is_idle = [&] {
    bool idle = false;
    EXPECT_EQ(library_.is_idle(stream_, &idle), kSuccess);
    return idle;
  };
  EXPECT_EQ(library_.wait_value(stream_, number, 0xfffffffd), kSuccess);
  Wait();
  EXPECT_EQ(library_.wait_value(stream_, number, 1), kSuccess);  // three later
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(is_idle());
  std::atomic_ref<uint32_t>(*number).store(2);
  Wait();
  EXPECT_TRUE(is_idle());
  EXPECT_EQ(library_.deallocate_pinned(memory), kSuccess);
}

TEST_F(LibraryTest, CopiesThroughPinnedMemory) {
  void *memory = nullptr, *pinned = nullptr;
  EXPECT_EQ(library_.allocate(64, &memory), kSuccess);
  EXPECT_EQ(library_.allocate_pinned(64, &pinned), kSuccess);
  EXPECT_EQ(library_.fill(stream_, memory, 3, 64), kSuccess);
  EXPECT_EQ(library_.copy(stream_, pinned, memory, 64), kSuccess);
  Wait();
  EXPECT_EQ(std::string(static_cast<char*>(pinned), 64), std::string(64, 3));
  EXPECT_EQ(library_.deallocate_pinned(pinned), kSuccess);
  EXPECT_EQ(library_.deallocate(memory), kSuccess);
}

TEST_F(LibraryTest, RefusesArgumentsWithoutMeaning) {
  char byte = 0;
  const int64_t negative = -1;
  const double factors[2] = {};
  const Piece piece = {&byte, &byte, 2, 1};
  EXPECT_NE(library_.reduce(stream_, ReduceOp::kMean, DType::kInt32, 1, 1, &byte, 4, &byte), kSuccess);
  EXPECT_NE(library_.reduce(stream_, ReduceOp::kSum, DType::kInt32, 0, 1, &byte, 4, &byte), kSuccess);
  EXPECT_NE(library_.divide(stream_, DType::kUInt8, 256, 1, &byte, &byte), kSuccess);
  EXPECT_NE(library_.convert(stream_, DType::kInt32, &byte, 1, DType::kFloat32, &byte), kSuccess);
  EXPECT_NE(library_.copy_pieces(stream_, &piece, 1), kSuccess);
  EXPECT_NE(library_.dot_products(stream_, DType::kFloat32, 1, &negative, &byte, &byte, nullptr), kSuccess);
  EXPECT_NE(library_.combine(stream_, DType::kFloat32, 1, &negative, factors, &byte, &byte, &byte), kSuccess);
  EXPECT_NE(library_.scale(stream_, DType::kFloat32, 1, -1, &byte, &byte), kSuccess);
  EXPECT_NE(library_.deallocate(&byte), kSuccess);
  Wait();
}

TEST_F(LibraryTest, ErrorsBecomeStatus) {
  EXPECT_TRUE(ToStatus(library_, kSuccess, "copy").ok());
  const Status status = ToStatus(library_, 1, "copy of 5 bytes");
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_EQ(status.message(), "copy of 5 bytes: invalid argument (error 1 of emulator 13.0)");
  void* memory = nullptr;
  const Error error = library_.allocate(std::numeric_limits<int64_t>::max(), &memory);
  EXPECT_EQ(ToStatus(library_, error, "allocate").code(), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace lockstep::device
