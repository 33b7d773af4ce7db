#include "core/base/json_text.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(JsonTextTest, EscapesWhatJsonDemands) {
  EXPECT_EQ(JsonText(""), "\"\"");
  EXPECT_EQ(JsonText("user/age"), "\"user/age\"");
  EXPECT_EQ(JsonText("a \"b\" \\c"), "\"a \\\"b\\\" \\\\c\"");
  EXPECT_EQ(JsonText(std::string_view("\n\x1f\0", 3)), "\"\\u000a\\u001f\\u0000\"");
}

TEST(JsonTextTest, CopiesOtherBytes) { EXPECT_EQ(JsonText("\xc3\xa9\xff\x7f"), "\"\xc3\xa9\xff\x7f\""); }

}  // namespace
}  // namespace lockstep
