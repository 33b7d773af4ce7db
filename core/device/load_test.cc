#include "core/device/load.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace lockstep::device {
namespace {

using testing::HasSubstr;

// The tests of this file run in this order in one process: a loaded library stays.
TEST(LoadLibraryTest, WithoutAPlaceSaysWhatIsMissing) {
  const auto library = LoadLibrary();
  EXPECT_EQ(library.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(library.status().message(), HasSubstr("the library for GPUs is not known"));
  SetLibraryPlace({.library = "", .missing = "build it with make gpu"});
  EXPECT_EQ(LoadLibrary().status().message(), "build it with make gpu");
}

TEST(LoadLibraryTest, AMissingFileIsNamed) {
  SetLibraryPlace({.library = "/nowhere/liblockstep_cuda13.so"});
  const auto library = LoadLibrary();
  EXPECT_EQ(library.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(library.status().message(), HasSubstr("/nowhere/liblockstep_cuda13.so cannot be loaded: "));
}

// Promise (gpu.md): a library for GPUs of other sources is refused by name.
TEST(LoadLibraryTest, RefusesALibraryOfOtherSources) {
  Library other = {};
  other.interface_id = "0123";
  const Status status = UseLibrary(&other);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("interface 0123, wanted "));
}

TEST(LoadLibraryTest, LoadsTheFileOnce) {
  SetLibraryPlace({.library = LOCKSTEP_EMULATED_LIBRARY});
  const auto library = LoadLibrary();
  ASSERT_TRUE(library.ok()) << library.status().ToString();
  EXPECT_STREQ((*library)->runtime, "emulator 13.0");
  SetLibraryPlace({.library = "/nowhere/liblockstep_cuda13.so"});
  EXPECT_EQ(*LoadLibrary(), *library);
}

TEST(LoadLibraryTest, TheLibraryShowsOneSymbol) {
  void* const library = ::dlopen(LOCKSTEP_EMULATED_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr);
  EXPECT_NE(::dlsym(library, kLibrarySymbol), nullptr);
  for (const char* hidden : {"lockstep_switch_stack", "cudaMalloc", "_Z10cudaMallocPPvm"}) {
    EXPECT_EQ(::dlsym(library, hidden), nullptr) << hidden;
  }
}

}  // namespace
}  // namespace lockstep::device
