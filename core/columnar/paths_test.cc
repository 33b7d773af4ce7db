#include "core/columnar/paths.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace lockstep::columnar {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;

// A folder of files, which is also the working folder; the test removes it.
class Paths : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/lockstep_paths_XXXXXX";
    folder_ = mkdtemp(name);
    before_ = fs::current_path();
    fs::current_path(folder_);
    for (const char* file : {"b.parquet", "a.parquet", "c[1].parquet", "day/2.parquet", "day/1.parquet", "day/_SUCCESS",
                             "day/.hidden/x.parquet", "day/hour=3/0.parquet"}) {
      fs::create_directories(fs::path(file).parent_path().empty() ? "." : fs::path(file).parent_path());
      std::ofstream(file) << "x";
    }
    fs::create_directory("empty");
  }

  void TearDown() override {
    fs::current_path(before_);
    fs::remove_all(folder_);
  }

  std::string folder_;
  fs::path before_;
};

// Returns the files of names that must be valid.
std::vector<std::string> Expand(const std::vector<std::string>& names) {
  auto files = ExpandPaths(names);
  EXPECT_TRUE(files.ok()) << files.status().ToString();
  return files.ok() ? *files : std::vector<std::string>();
}

TEST_F(Paths, NamesKeepTheirOrderAndMayBeRelative) {
  EXPECT_THAT(Expand({"b.parquet", folder_ + "/a.parquet", "file://" + folder_ + "/b.parquet"}),
              ElementsAre("b.parquet", folder_ + "/a.parquet", folder_ + "/b.parquet"));
}

// As a pattern, c[1].parquet would match c1.parquet.
TEST_F(Paths, PatternsAreSortedAndAnExactNameIsNoPattern) {
  EXPECT_THAT(Expand({"*.parquet"}), ElementsAre("a.parquet", "b.parquet", "c[1].parquet"));
  EXPECT_THAT(Expand({"c[1].parquet"}), ElementsAre("c[1].parquet"));
}

// A folder may be named, or match a pattern. Partitioned tables (hour=3) are nested folders.
TEST_F(Paths, FoldersAreReadInDepthAndSortedWithoutMarkersAndHiddenFiles) {
  EXPECT_THAT(Expand({"day"}), ElementsAre("day/1.parquet", "day/2.parquet", "day/hour=3/0.parquet"));
  EXPECT_THAT(Expand({"d*"}), ElementsAre("day/1.parquet", "day/2.parquet", "day/hour=3/0.parquet"));
}

TEST_F(Paths, PatternsMatchMarkersAndHiddenFilesOnlyWhereWrittenOut) {
  fs::create_directory("day/_temporary");
  std::ofstream("day/_temporary/0.parquet") << "x";
  EXPECT_THAT(Expand({"day/*"}), ElementsAre("day/1.parquet", "day/2.parquet", "day/hour=3/0.parquet"));
  EXPECT_THAT(Expand({"d*/*/*"}), ElementsAre("day/hour=3/0.parquet"));
  EXPECT_THAT(Expand({"day/_S*"}), ElementsAre("day/_SUCCESS"));
  EXPECT_THAT(Expand({"day/_*/*", "day/_temporary/*"}),
              ElementsAre("day/_temporary/0.parquet", "day/_temporary/0.parquet"));
  EXPECT_EQ(ExpandPaths({"day/*S"}).status().ToString(), "NOT_FOUND: only hidden files match 'day/*S'");
}

// The lookup of a loop of links fails for every user; a lack of permission does not stop root.
TEST_F(Paths, WhatCannotBeLookedUpIsNotSaidToBeMissing) {
  fs::create_symlink("loop", "loop");
  EXPECT_EQ(ExpandPaths({"loop"}).status().ToString(),
            "INTERNAL: file 'loop' cannot be looked up: Too many levels of symbolic links");
  if (geteuid() == 0) return;
  fs::permissions("day", fs::perms::none);
  for (const std::string name : {"day/1.parquet", "day/*"}) {
    EXPECT_EQ(ExpandPaths({name}).status().ToString(),
              "INTERNAL: file '" + name + "' cannot be looked up: Permission denied");
  }
  fs::permissions("day", fs::perms::all);
}

// Compares whole messages, because a user sees only these.
TEST_F(Paths, WhatIsNotThereIsNamed) {
  const auto message = [](const std::string& name) { return ExpandPaths({name}).status().ToString(); };
  EXPECT_EQ(message("nope.parquet"), "NOT_FOUND: file 'nope.parquet' does not exist");
  EXPECT_EQ(message("nope/*.parquet"), "NOT_FOUND: no file matches 'nope/*.parquet'");
  EXPECT_EQ(message("empty"), "NOT_FOUND: folder 'empty' holds no files");
  EXPECT_EQ(message(""), "INVALID_ARGUMENT: a file name is empty");
  EXPECT_EQ(message("foo://bucket/key"),
            "UNIMPLEMENTED: file 'foo://bucket/key': Unrecognized filesystem type in URI: foo://bucket/");
  EXPECT_EQ(ExpandPaths({}).status().ToString(), "INVALID_ARGUMENT: no file names are given");
}

}  // namespace
}  // namespace lockstep::columnar
