#include "core/columnar/files/arrow_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/columnar/files/files.h"

namespace lockstep::columnar {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A library whose functions only tell that they were called.
ArrowLibrary Fake(const char* id) {
  return {
      .interface_id = id,
      .allocate = [](int64_t, void**) -> Result<Buffer> { return ResourceExhausted("the fake has no memory"); },
      .open = [](const std::string& path) -> Result<std::shared_ptr<ParquetFile>> { return NotFound("open " + path); },
      .read = [](const std::string& name, const std::function<void(std::string_view)>& use) -> Status {
        use("bytes of " + name);
        return OkStatus();
      },
      .expand = [](const std::string& name) -> Result<std::vector<std::string>> {
        return std::vector<std::string>{name, name};
      }};
}

// One test after another: what is loaded stays loaded.
TEST(ArrowLibraryTest, ErrorsSayWhatIsMissingUntilALibraryIsThere) {
  EXPECT_EQ(OpenParquetFile("a").status().code(), StatusCode::kFailedPrecondition);

  SetArrowPlace({.library = "", .needed = {}, .missing = "pyarrow 3 is installed, wanted 25"});
  EXPECT_EQ(OpenParquetFile("a").status(), FailedPrecondition("pyarrow 3 is installed, wanted 25"));
  EXPECT_EQ(ReadFile("a", [](std::string_view) {}), FailedPrecondition("pyarrow 3 is installed, wanted 25"));
  EXPECT_EQ(ExpandRemote("s3://a").status(), FailedPrecondition("pyarrow 3 is installed, wanted 25"));

  SetArrowPlace({.library = "/nowhere/liblockstep_arrow1.so", .needed = {}});
  EXPECT_THAT(LoadArrow().status().message(), AllOf(HasSubstr("/nowhere/liblockstep_arrow1.so"), HasSubstr("loaded")));
  SetArrowPlace({.library = "/nowhere/liblockstep_arrow1.so", .needed = {"/nowhere/libarrow.so.1"}});
  EXPECT_THAT(LoadArrow().status().message(), HasSubstr("/nowhere/libarrow.so.1"));

  // A library of the system without the symbol.
  SetArrowPlace({.library = "libm.so.6", .needed = {}});
  EXPECT_THAT(LoadArrow().status().message(), HasSubstr(kArrowLibrarySymbol));
  EXPECT_EQ(LoadArrow().status().code(), StatusCode::kFailedPrecondition);

  static const ArrowLibrary other = Fake("other");
  EXPECT_THAT(UseArrow(&other).message(), AllOf(HasSubstr("interface other"), HasSubstr(ArrowInterfaceId())));
  EXPECT_FALSE(LoadArrow().ok());

  static const ArrowLibrary fake = Fake(ArrowInterfaceId());
  EXPECT_EQ(UseArrow(&fake), OkStatus());
  EXPECT_EQ(OpenParquetFile("a").status(), NotFound("open a"));
  EXPECT_EQ(ExpandRemote("s3://a")->size(), 2u);
  std::string read;
  EXPECT_EQ(ReadFile("a", [&](std::string_view bytes) { read += bytes; }), OkStatus());
  EXPECT_EQ(read, "bytes of a");
  void* data = nullptr;
  EXPECT_EQ(AllocateBuffer(8, &data).status(), ResourceExhausted("the fake has no memory"));
}

}  // namespace
}  // namespace lockstep::columnar
