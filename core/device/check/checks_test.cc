#include "core/device/check/checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/testing/emulator/block.h"

extern "C" const lockstep::device::Library* lockstep_device_library();

namespace lockstep::device {
namespace {

using testing::HasSubstr;

const Library& Emulated() { return *lockstep_device_library(); }

// Kernels over the emulator against the CPU's functions: all types and operations, under several schedules.
class KernelsTest : public testing::TestWithParam<uint64_t> {
 protected:
  ~KernelsTest() override { emulator::SetSchedule({}); }
};

// Promise (gpu.md): kernels have the bits of the CPU's functions, in any order of their threads.
TEST_P(KernelsTest, HaveTheBitsOfTheCpu) {
  emulator::SetSchedule({GetParam(), 2});
  Session session(Emulated());
  for (const Check& check : AllChecks({0, 1, 3, 17, 255, 1000})) {
    const Status status = check.run(session, GetParam());
    EXPECT_TRUE(status.ok()) << check.name << ", seed " << GetParam() << ": " << status.ToString();
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, KernelsTest, testing::Range<uint64_t>(0, 10));

// Sizes at which blocks, tiles and chunks begin.
TEST(KernelSizesTest, HaveTheBitsOfTheCpu) {
  Session session(Emulated());
  for (const Check& check : AllChecks({4095, 4097, 33000})) {
    const bool is_large = check.name.find("pieces") != std::string::npos || check.name.ends_with(" float32");
    if (!is_large) continue;
    const Status status = check.run(session, 5);
    EXPECT_TRUE(status.ok()) << check.name << ": " << status.ToString();
  }
}

TEST(ChecksTest, CoverEachKernel) {
  std::map<std::string, int> checks;
  for (const Check& check : AllChecks({1})) ++checks[check.name.substr(0, check.name.find(' '))];
  EXPECT_EQ(checks, (std::map<std::string, int>{{"copy_pieces", 1},
                                                {"reduce", 13 * 5 - 9},  // no mean of integers and bools
                                                {"scale", 13},
                                                {"divide", 13},
                                                {"fill_neutral", 13 * 5},
                                                {"convert", 16 + 12},
                                                {"dot_products", 2},
                                                {"combine", 2}}));
}

// Checks must fail for a library with a fault.
TEST(ChecksTest, NameTheFirstElementThatDiffers) {
  Library faulty = Emulated();
  faulty.scale = [](Stream stream, DType dtype, double factor, int64_t count, const void* in, void* out) {
    return Emulated().scale(stream, dtype, factor * 1.001, count, in, out);
  };
  Session session(faulty);
  for (const Check& check : AllChecks({100})) {
    if (check.name != "scale float32") continue;
    EXPECT_THAT(check.run(session, 1).message(), HasSubstr("100 elements, offset 0: element 0 is "));
  }
}

TEST(ChecksTest, ReturnTheErrorsOfFunctions) {
  Library failing = Emulated();
  failing.allocate = [](int64_t, void** memory) -> Error {
    *memory = nullptr;
    return kOutOfMemory;
  };
  Session session(failing);
  for (const Check& check : AllChecks({100})) {
    const Status status = check.run(session, 1);
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << check.name;
    EXPECT_THAT(status.message(), HasSubstr("allocate: out of memory (error 2 of emulator 13.0)"));
  }
}

}  // namespace
}  // namespace lockstep::device
