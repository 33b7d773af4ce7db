// Promise of this file (security.md): forged, repeated and reflected frames of the watch are refused.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/comm/liveness/test_watch.h"
#include "core/comm/liveness/watch.h"
#include "core/comm/liveness/watch_wire.h"

// Ends with a message: errors of ReportError, and farewells; and their encoding.

namespace lockstep {
namespace {

class WatchWordsTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, WatchWordsTest, ::testing::Values(0, 1, 2),
                         [](const auto& info) { return StrCat("rank_", info.param); });

TEST_P(WatchWordsTest, LastWordsReachAllWithTheirCodeAndWhoSaidThem) {
  WatchJob job(3, [giver = GetParam()](Scene& scene) -> std::string {
    // Callbacks may call functions that wait on other threads.
    {
      const MutexLock lock(scene.mutex);
      scene.also_on_verdict = [&] {
        scene.watch->AwaitFate(scene.rank, kWatchDeadline_s);
        scene.watch->ReportError(Internal("too late"));
        scene.watch->Leave();
      };
    }
    ++scene.board->ready;
    Board::Await(scene.board->ready, 2 * scene.size);
    scene.board->Now();
    if (scene.rank != giver) {
      std::string error =
          ExpectEnd(scene, StatusCode::kOutOfRange, scene.places[giver] + " gave up: no data", kAtOnce_s);
      if (scene.watch->fate(giver) != Watch::Fate::kLost) error += "who gave up is not lost\n";
      ++scene.board->done;
      return error;
    }
    scene.watch->ReportError(OutOfRange("no data"));
    scene.watch->ReportError(Internal("second thoughts"));
    Board::Await(scene.board->done, 2);
    if (scene.watch->fate(giver) != Watch::Fate::kLost) return "who gave up is not lost";
    return scene.watch->verdict().message();
  });
  job.ExpectWell();
}

// The process ends right after the message; unsent data would be lost with it.
TEST_P(WatchWordsTest, LastWordsOfARankThatLeavesAtOnceReachAll) {
  WatchJob job(3, [giver = GetParam()](Scene& scene) -> std::string {
    scene.board->Now();
    if (scene.rank != giver) {
      return ExpectEnd(scene, StatusCode::kDataLoss, scene.places[giver] + " gave up: a broken file", kAtOnce_s);
    }
    scene.watch->ReportError(DataLoss("a broken file"));
    return "";
  });
  job.ExpectWell();
}

TEST(WatchWordsTest, OfTwoThatGiveUpAtOnceTheOthersHearOneAndItIsTheSame) {
  WatchJob job(8, [](Scene& scene) -> std::string {
    scene.board->Now();
    if (scene.rank == 3 || scene.rank == 5) {
      scene.watch->ReportError(Aborted("words"));
      Board::Await(scene.board->done, scene.size - 2);
      return "";
    }
    const std::string error = ExpectEnd(scene, StatusCode::kAborted, "rank ", kAtOnce_s);
    const std::string text = scene.watch->verdict().message();
    const int who = text == scene.places[3] + " gave up: words"   ? 3
                    : text == scene.places[5] + " gave up: words" ? 5
                                                                  : 0;
    int first = 0;
    if (who == 0 || (!scene.board->pid.compare_exchange_strong(first, who) && first != who)) return text;
    ++scene.board->done;
    return error;
  });
  job.ExpectWell();
}

TEST(WatchWordsTest, LongWordsAreCutBetweenCharacters) {
  WatchJob job(3, [](Scene& scene) -> std::string {
    scene.board->Now();
    std::string words = "x";
    while (words.size() < 10000) words += "\u00e4";
    if (scene.rank == 2) {
      scene.watch->ReportError(Internal(words));
      Board::Await(scene.board->done, 2);
      return "";
    }
    std::string error =
        ExpectEnd(scene, StatusCode::kInternal,
                  scene.places[2] + " gave up: " + words.substr(0, watch::kMaxWordsBytes - 1), kAtOnce_s);
    if (scene.watch->verdict().message().size() > watch::kMaxTextBytes) error += "it is too long\n";
    ++scene.board->done;
    return error;
  });
  job.ExpectWell();
}

TEST_P(WatchWordsTest, ARankThatLeavesEndsNothing) {
  WatchJob job(3, [leaver = GetParam()](Scene& scene) -> std::string {
    if (scene.rank == leaver) return "";
    scene.watch->AwaitFate(leaver, kWatchDeadline_s);
    if (scene.watch->fate(leaver) != Watch::Fate::kLeft) return "the rank that left is not known to";
    // Longer than a rank may be silent.
    SleepFor(kSilence_s * 1.5);
    const int other = 3 - leaver - scene.rank;
    if (leaver == 0) {
      // Nothing more will be known of the others, so no thread waits for it.
      scene.watch->AwaitFate(other, 1e9);
    } else if (scene.watch->fate(other) != Watch::Fate::kRunning) {
      return "the other has not left";
    }
    ++scene.board->done;
    Board::Await(scene.board->done, 2);
    return scene.watch->verdict().message();
  });
  job.ExpectWell();
}

// The others' machines take the farewell, although one process is frozen.
TEST(WatchWordsTest, LeavingDoesNotWaitForWhoIsFrozen) {
  WatchJob job(3, [](Scene& scene) -> std::string {
    if (scene.rank == 2) testing::FreezeNow();
    if (scene.rank == 1) return "";
    SleepFor(kBeat_s);
    scene.board->Now();
    scene.watch->Leave();
    const double took_s = scene.board->SinceFault();
    return took_s < kAtOnce_s ? "" : StrCat("it took ", took_s, " s");
  });
  job.ExpectWell({2});
}

TEST(WatchWordsTest, EightThatLeaveAtOnceDoNotDisturbEachOther) {
  WatchJob job(8, [](Scene& scene) -> std::string {
    scene.watch->Leave();
    scene.watch->ReportError(Internal("too late"));
    const Status verdict = scene.watch->verdict();
    return verdict.ok() && scene.watch->fate(scene.rank) == Watch::Fate::kLeft ? "" : verdict.ToString();
  });
  job.ExpectWell();
}

TEST(WatchWordsTest, ARankAloneHasNothingToWatch) {
  WatchJob job(1, [](Scene& scene) -> std::string {
    scene.watch->AwaitFate(0, kSilence_s);
    scene.watch->Leave();
    return scene.watch->verdict().message();
  });
  job.ExpectWell();
}

using watch::Channel;
using watch::Message;

Digest Key() { return Sha256("key"); }

// Returns the frame's body as the other side opens it.
Result<std::optional<std::string>> Opened(std::string frame, int guest = 1,
                                          Channel::Direction direction = Channel::Direction::kToZero) {
  return Channel(Key(), guest, direction).Open(frame);
}

TEST(WatchWireTest, MessagesComeBackAndPiecesOfThemAreRefused) {
  for (const Message& message :
       {Message{}, Message{Message::Kind::kLeft, 7, OkStatus()}, Message{Message::Kind::kEnd, 3, Aborted("why")}}) {
    const std::string bytes = watch::Encode(message);
    const auto decoded = watch::Decode(bytes);
    ASSERT_TRUE(decoded.has_value());
    EXPECT_EQ(decoded->kind, message.kind);
    EXPECT_EQ(decoded->rank, message.rank);
    EXPECT_EQ(decoded->status, message.status);
    for (size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(watch::Decode(bytes.substr(0, size)).has_value());
    EXPECT_FALSE(watch::Decode(bytes + "x").has_value());
  }
  EXPECT_FALSE(watch::Decode("z").has_value());
  EXPECT_FALSE(watch::Decode(watch::Encode({Message::Kind::kEnd, 3, OkStatus()})).has_value())
      << "an end without a why";
}

TEST(WatchWireTest, FramesAreOpenedInTheirOrderAndWhole) {
  Channel sender(Key(), 1, Channel::Direction::kToZero), receiver(Key(), 1, Channel::Direction::kToZero);
  std::string input = sender.Seal("one");
  input += sender.Seal("");
  const std::string third = sender.Seal("three");
  input += third.substr(0, third.size() - 1);
  EXPECT_EQ(**receiver.Open(input), "one");
  EXPECT_EQ(**receiver.Open(input), "");
  EXPECT_FALSE(receiver.Open(input)->has_value());
  input += third.back();
  EXPECT_EQ(**receiver.Open(input), "three");
  EXPECT_EQ(input, "");
}

TEST(WatchWireTest, AFrameIsWorthNothingTwiceLateElsewhereOrSentBack) {
  Channel sender(Key(), 1, Channel::Direction::kToZero), receiver(Key(), 1, Channel::Direction::kToZero);
  const std::string first = sender.Seal("words"), second = sender.Seal("words");
  EXPECT_EQ(**Opened(first), "words");
  EXPECT_EQ(Opened(second).status().code(), StatusCode::kDataLoss) << "the one before it is missing";
  EXPECT_EQ(Opened(first, 2).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(Opened(first, 1, Channel::Direction::kFromZero).status().code(), StatusCode::kDataLoss);
  std::string twice = first + first;
  EXPECT_TRUE(receiver.Open(twice).ok());
  EXPECT_EQ(receiver.Open(twice).status().code(), StatusCode::kDataLoss);
  std::string other_key = first;
  EXPECT_FALSE(Channel(Sha256("another"), 1, Channel::Direction::kToZero).Open(other_key).ok());
}

TEST(WatchWireTest, AFrameHoldsAgainstEveryChangedByte) {
  const std::string frame = Channel(Key(), 1, Channel::Direction::kToZero).Seal("body");
  for (size_t i = 0; i < frame.size(); ++i) {
    std::string changed = frame;
    changed[i] ^= 1;
    const auto opened = Opened(changed);
    EXPECT_TRUE(!opened.ok() || !opened->has_value()) << "byte " << i;
  }
}

TEST(WatchWireTest, ALengthThatIsTooLongIsRefusedBeforeAnythingElseHasCome) {
  EXPECT_FALSE(Opened(std::string("\0\x10\0\0", 4))->has_value());
  EXPECT_EQ(Opened(std::string("\1\x10\0\0", 4)).status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace lockstep
