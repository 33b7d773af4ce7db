#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/device/library.h"

// The library for GPUs, which the tests build where a CUDA compiler is (LOCKSTEP_BUILD_CUDA). Most machines that run
// them have no GPU: there it loads, and counts no device.
namespace lockstep::device {
namespace {

// Promise (gpu.md): the library for GPUs loads without a driver, and then counts no device and gives the reason.
TEST(CudaLibraryTest, LoadsWithoutADriver) {
  const std::string path = LOCKSTEP_CUDA_LIBRARY;
  if (path.empty()) GTEST_SKIP() << "no CUDA compiler: tools/setup.sh cuda installs one";
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << ::dlerror();
  void* const symbol = ::dlsym(library, kLibrarySymbol);
  ASSERT_NE(symbol, nullptr);
  const Library& functions = *reinterpret_cast<const Library* (*)()>(symbol)();
  EXPECT_STREQ(functions.interface_id, InterfaceId());
  EXPECT_THAT(functions.runtime, testing::StartsWith("CUDA 13."));
  int count = -1;
  const char* why = nullptr;
  EXPECT_EQ(functions.device_count(&count, &why), kSuccess);
  EXPECT_GE(count, 0);
  EXPECT_EQ(count == 0, std::string(why) != "") << why;
  EXPECT_STREQ(functions.error_text(kOutOfMemory), "out of memory");
  EXPECT_EQ(::dlsym(library, "cudaMalloc"), nullptr);
}

}  // namespace
}  // namespace lockstep::device
