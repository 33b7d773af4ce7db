// Promise of this file (security.md): messages that were changed, repeated, left out or reflected are found.

#include "core/base/seal.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace lockstep {
namespace {

constexpr int64_t kMost = 100;

std::string FrameOf(Seal& seal, const std::string& message) {
  std::string frame(Seal::kBytes + kMost, '\0');
  std::memcpy(frame.data() + Seal::kBytes, message.data(), message.size());
  seal.Close(frame.data(), static_cast<int64_t>(message.size()));
  return frame;
}

TEST(Seal, MessagesAreReadInTheirOrder) {
  Seal out(Sha256("key"), "test", 3, 5), in(Sha256("key"), "test", 3, 5);
  for (const std::string message : {"first", "", "third"}) {
    const std::string frame = FrameOf(out, message);
    EXPECT_EQ(in.Open(frame.data(), kMost), message);
  }
  EXPECT_EQ(in.count(), 3u);
}

TEST(Seal, EveryChangedBitOfAMessageIsNoticed) {
  Seal out(Sha256("key"), "test", 3, 5), in(Sha256("key"), "test", 3, 5);
  const std::string frame = FrameOf(out, "counts");
  for (size_t bit = 0; bit < 8 * (Seal::kBytes + 6); ++bit) {
    std::string changed = frame;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ 1 << bit % 8);
    EXPECT_EQ(in.Open(changed.data(), kMost), std::nullopt) << bit;
  }
  EXPECT_EQ(in.Open(frame.data(), kMost), "counts");
}

TEST(Seal, ARepeatedLeftOutReflectedOrForeignMessageIsNoticed) {
  Seal out(Sha256("key"), "test", 3, 5), in(Sha256("key"), "test", 3, 5), back(Sha256("key"), "test", 5, 3);
  Seal other(Sha256("other key"), "test", 3, 5), elsewhere(Sha256("key"), "other", 3, 5);
  const std::string first = FrameOf(out, "first"), second = FrameOf(out, "second"), third = FrameOf(out, "third");
  EXPECT_EQ(in.Open(second.data(), kMost), std::nullopt);
  EXPECT_EQ(in.Open(FrameOf(back, "first").data(), kMost), std::nullopt);
  EXPECT_EQ(in.Open(FrameOf(other, "first").data(), kMost), std::nullopt);
  EXPECT_EQ(in.Open(FrameOf(elsewhere, "first").data(), kMost), std::nullopt);
  EXPECT_EQ(in.Open(first.data(), kMost), "first");
  EXPECT_EQ(in.Open(first.data(), kMost), std::nullopt);
  EXPECT_EQ(in.Open(third.data(), kMost), std::nullopt);
  EXPECT_EQ(in.Open(second.data(), kMost), "second");
  EXPECT_EQ(in.count(), 2u);
}

TEST(Seal, OfALargeMessageTheBeginIsCovered) {
  Seal out(Sha256("key"), "test", 0, 1, /*covered=*/4), in(Sha256("key"), "test", 0, 1, /*covered=*/4);
  std::string frame = FrameOf(out, "countsdata");
  frame[Seal::kBytes + 3] ^= 1;
  EXPECT_EQ(in.Open(frame.data(), kMost), std::nullopt);
  frame[Seal::kBytes + 3] ^= 1;
  frame[Seal::kBytes + 4] ^= 1;
  EXPECT_EQ(in.Open(frame.data(), kMost), std::string("counusdata"));
}

TEST(Seal, ALengthIsComparedBeforeItIsUsed) {
  Seal out(Sha256("key"), "test", 0, 1), in(Sha256("key"), "test", 0, 1);
  const std::string frame = FrameOf(out, std::string(kMost, 'x'));
  EXPECT_EQ(in.Open(frame.data(), kMost - 1), std::nullopt);
  EXPECT_TRUE(in.Open(frame.data(), kMost).has_value());
}

}  // namespace
}  // namespace lockstep
