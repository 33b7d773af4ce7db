#include "core/columnar/arrow/proto_fields.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace lockstep::columnar {
namespace {

// The messages of https://protobuf.dev/programming-guides/encoding, and others made by its rules.
TEST(ProtoFieldsTest, ReadsTheDocumentationsExamples) {
  const std::string message = "\x08\x96\x01\x12\x07testing\x32\x04\x03\x8e\x02\x05";
  ProtoFields fields(message);
  EXPECT_EQ(fields.Next()->value, 150);
  const auto text = fields.Next();
  EXPECT_EQ(text->number, 2);
  EXPECT_EQ(text->bytes, "testing");
  ProtoFields packed(fields.Next()->bytes);
  EXPECT_EQ(packed.NextPacked(), 3);
  EXPECT_EQ(packed.NextPacked(), 270);
  EXPECT_EQ(packed.NextPacked(), 5);
  EXPECT_EQ(packed.NextPacked(), std::nullopt);
  EXPECT_EQ(fields.Next(), std::nullopt);
  EXPECT_FALSE(fields.damaged() || packed.damaged());
}

TEST(ProtoFieldsTest, ReadsNumbersWithASignAndOfFixedSize) {
  EXPECT_EQ((ProtoField{1, 3, {}}.Signed()), -2);
  EXPECT_EQ((ProtoField{1, std::numeric_limits<uint64_t>::max(), {}}.Signed()), std::numeric_limits<int64_t>::min());
  const std::string message("\x19\0\0\0\0\0\0\xf8\xbf\x15\x01\0\0\0", 14);
  ProtoFields fields(message);
  EXPECT_EQ(fields.Next()->Double(), -1.5);
  EXPECT_EQ(fields.Next()->value, 1);
}

// A length beyond the end, a number without an end, a number of 11 bytes, and kinds of fields that no longer exist.
TEST(ProtoFieldsTest, EndsAtBytesThatAreNoMessage) {
  for (const std::string& message :
       {std::string("\x0a\x05\x61"), std::string("\x08\x80"), "\x08" + std::string(10, '\x80') + "\x01",
        std::string("\x0b"), std::string("\x09\x01"), std::string("\x0f")}) {
    ProtoFields fields(message);
    EXPECT_EQ(fields.Next(), std::nullopt);
    EXPECT_TRUE(fields.damaged());
  }
}

}  // namespace
}  // namespace lockstep::columnar
