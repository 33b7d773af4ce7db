#include "core/capi/describe_devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/capi/device_place.h"
#include "core/testing/standin_nccl_file.h"

namespace {

using testing::HasSubstr;
using testing::StartsWith;

// The tests of this file run in this order in one process: a loaded library stays.
TEST(DescribeDevicesTest, AMissingLibraryIsAnError) {
  lockstep_set_device_library("", "build it with make gpu");
  EXPECT_STREQ(lockstep_describe_devices(0), "{\"error\": \"build it with make gpu\"}");
  lockstep_set_device_library("/nowhere/liblockstep_cuda13.so", "");
  EXPECT_THAT(lockstep_describe_devices(1), StartsWith("{\"error\": \"GPUs: library /nowhere/liblockstep_cuda13.so"));
}

TEST(DescribeDevicesTest, DescribesTheDevicesOfTheLibrary) {
  lockstep_set_device_library(LOCKSTEP_EMULATED_LIBRARY, "");
  EXPECT_STREQ(lockstep_describe_devices(0),
               "{\"runtime\": \"emulator 13.0\", \"driver\": 13000, \"count\": 1, \"why\": \"\", \"devices\": []}");
  const std::string described = lockstep_describe_devices(1);
  EXPECT_THAT(described, HasSubstr("\"devices\": [{\"name\": \""));
  EXPECT_THAT(described, HasSubstr(", \"peers\": []}]}"));
}

// nccl_api_test.cc has the errors of a missing NCCL: the system of this test may have one.
TEST(DescribeDevicesTest, DescribesTheNcclOfItsPlace) {
  const std::string file = lockstep::testing::StandinNcclFile();
  lockstep_set_nccl(file.c_str(), "");
  EXPECT_EQ(lockstep_describe_nccl(), "{\"version\": 22707, \"place\": \"" + file + " (LOCKSTEP_NCCL)\"}");
}

}  // namespace
