#include "core/capi/apart_warning.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace lockstep {
namespace {

// A warning that keeps what it shows.
struct Kept {
  std::vector<std::string> shown;
  ApartWarning warning{[this](const std::string& text) { shown.push_back(text); }};
};

TEST(ApartWarningTest, TheFirstReadShowsTheLastText) {
  Kept kept;
  kept.warning.NoteRead();
  kept.warning.SetText("a");
  kept.warning.SetText("b");
  kept.warning.NoteRead();
  kept.warning.NoteRead();
  EXPECT_EQ(kept.shown, std::vector<std::string>{"b"});
}

TEST(ApartWarningTest, OneTextIsShownInAll) {
  Kept kept;
  kept.warning.SetText("read");
  kept.warning.Warn("table");
  kept.warning.Warn("export");
  kept.warning.NoteRead();
  kept.warning.SetText("read again");
  kept.warning.NoteRead();
  EXPECT_EQ(kept.shown, std::vector<std::string>{"table"});
}

TEST(ApartWarningTest, NothingIsShownOnceTheProcessJoins) {
  Kept kept;
  kept.warning.SetText("before");
  kept.warning.NoteJoining();
  kept.warning.SetText("after");
  kept.warning.NoteRead();
  kept.warning.Warn("table");
  EXPECT_TRUE(kept.shown.empty());
}

TEST(ApartWarningTest, ThreadsThatReadAtOnceShowOneText) {
  for (int repetition = 0; repetition < 100; ++repetition) {
    Kept kept;
    kept.warning.SetText("text");
    std::vector<std::thread> readers;
    for (int i = 0; i < 4; ++i) readers.emplace_back([&kept] { kept.warning.NoteRead(); });
    for (std::thread& reader : readers) reader.join();
    EXPECT_EQ(kept.shown, std::vector<std::string>{"text"});
  }
}

}  // namespace
}  // namespace lockstep
