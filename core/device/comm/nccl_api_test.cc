#include "core/device/comm/nccl_api.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "core/testing/ranks.h"
#include "core/testing/standin_nccl_file.h"

namespace lockstep::device::nccl {
namespace {

// In a process of its own, because a library stays loaded. Returns the place where NCCL was found, or the error.
std::string LoadAlone(const NcclPlace& place, const char* version = nullptr) {
  testing::Ranks process(1, [&](int, const testing::Ranks::Report& report) {
    if (version != nullptr) setenv("LOCKSTEP_STANDIN_NCCL_VERSION", version, 1);
    const auto api = Load(place);
    report(api.ok() ? (*api)->place : api.status().ToString());
    return 0;
  });
  return process.Wait(60)[0].report;
}

TEST(NcclApiTest, OnlyTheFileOfTheVariableIsTried) {
  EXPECT_EQ(LoadAlone({.file = testing::StandinNcclFile(), .folder = "/nowhere"}),
            std::string(testing::StandinNcclFile()) + " (LOCKSTEP_NCCL)");
  const std::string error = LoadAlone({.file = "/nowhere/a.so", .folder = "/no/wheel"});
  EXPECT_NE(error.find("FAILED_PRECONDITION: NCCL cannot be loaded: /nowhere/a.so (LOCKSTEP_NCCL): "),
            std::string::npos)
      << error;
  EXPECT_EQ(error.find("/no/wheel"), std::string::npos) << error;
}

TEST(NcclApiTest, EveryPlaceIsNamedWithItsReason) {
  const std::string error = LoadAlone({.file = "", .folder = "/no/wheel", .system = false});
  EXPECT_NE(error.find("FAILED_PRECONDITION: NCCL cannot be loaded: the process's own: "), std::string::npos) << error;
  EXPECT_NE(error.find("/no/wheel/libnccl.so.2: "), std::string::npos) << error;
  EXPECT_NE(error.find("install nvidia-nccl-cu13, or set LOCKSTEP_NCCL"), std::string::npos) << error;
}

TEST(NcclApiTest, OldVersionsAreRefused) {
  const std::string error = LoadAlone({.file = testing::StandinNcclFile(), .folder = "", .system = false}, "21503");
  EXPECT_NE(error.find("version 2.15.3, wanted 2.16.0 or later"), std::string::npos) << error;
}

}  // namespace
}  // namespace lockstep::device::nccl
