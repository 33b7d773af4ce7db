#include "core/columnar/reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>

#include "core/columnar/arrow/linked/test_parquet.h"

namespace lockstep::columnar {
namespace {

std::vector<Field> Fields() {
  return {{"id", {ValueType::kInt64, 0, {}}, {}},
          {"list", {ValueType::kInt32, 1, {}}, {}},
          {"text", {ValueType::kString, 0, {}}, {}}};
}

SourceOptions OptionsOf(std::vector<std::string> paths, int64_t batch_size, int64_t threads = 2) {
  SourceOptions options;
  options.paths = std::move(paths);
  options.fields = Fields();
  options.threads = threads;
  options.plan.batch_size = batch_size;
  return options;
}

// Files in a folder that the test removes when it ends.
class ReaderTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/lockstep_reader_XXXXXX";
    folder_ = mkdtemp(name);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Writes rows [first, first + rows) and returns the file's name.
  std::string Write(const std::string& name, int64_t first, int64_t rows, int64_t group_rows) {
    const std::string path = folder_ + "/" + name;
    WriteTestRows(path, first, rows, group_rows);
    return path;
  }

  std::string folder_;
};

// Checks the rows of a batch against WriteTestRows' and returns their ids. The caller then compares which rows came,
// and in which order.
std::vector<int64_t> CheckedIds(const Batch& batch) {
  std::vector<int64_t> ids(batch.columns[0].values.as<int64_t>(), batch.columns[0].values.as<int64_t>() + batch.rows);
  const Column& list = batch.columns[1];
  const Column& text = batch.columns[2];
  const auto* splits = list.splits[0].as<int64_t>();
  const auto* offsets = text.offsets.as<int64_t>();
  for (int64_t i = 0; i < batch.rows; ++i) {
    EXPECT_EQ(splits[i + 1] - splits[i], ids[i] % 4);
    for (int64_t j = splits[i]; j < splits[i + 1]; ++j) {
      EXPECT_EQ(list.values.as<int32_t>()[j], 10 * ids[i] + j - splits[i]);
    }
    EXPECT_EQ(std::string(text.values.as<char>() + offsets[i], offsets[i + 1] - offsets[i]),
              "row " + std::to_string(ids[i]));
  }
  return ids;
}

// Returns all ids from `position` on, or the status of a failure. Checks the reader's position after every batch.
Result<std::vector<int64_t>> ReadAll(const SourceOptions& options, int64_t position = 0) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::shared_ptr<const Source> source, Source::Make(options));
  Reader reader(source, position);
  std::vector<int64_t> ids;
  while (true) {
    LOCKSTEP_ASSIGN_OR_RETURN(const Batch batch, reader.Next());
    if (batch.rows == 0) return ids;
    const std::vector<int64_t> more = CheckedIds(batch);
    ids.insert(ids.end(), more.begin(), more.end());
    EXPECT_EQ(reader.position(), position + static_cast<int64_t>(ids.size()));
  }
}

Status CheckPosition(const SourceOptions& now, const SourceOptions& then) {
  const auto before = Source::Make(then), after = Source::Make(now);
  EXPECT_TRUE(before.ok() && after.ok());
  return (*after)->identity().Check((*before)->identity());
}

TEST_F(ReaderTest, APositionIsOneOfTheSameRowsInTheSameOrderAlone) {
  const std::string a = Write("a", 0, 30, 10), b = Write("b", 30, 30, 10);
  const SourceOptions options = OptionsOf({a, b}, 8);
  const auto saved = Source::Make(options);
  ASSERT_TRUE(saved.ok());

  SourceOptions same = options;
  same.threads = 1;
  same.piece_rows = 3;
  same.fields.pop_back();
  EXPECT_TRUE(CheckPosition(same, options).ok());

  const auto refused = [&](const SourceOptions& now, const std::string& message) {
    const Status status = CheckPosition(now, options);
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(message));
  };
  refused(OptionsOf({b}, 8), "'" + a + "' is no longer among the files (2 files then, 1 file now)");
  refused(OptionsOf({a, b, Write("c", 60, 1, 10)}, 8), "/c' was not among the files (2 files then, 3 files now)");
  refused(OptionsOf({b, a}, 8), "in another order");
  refused(OptionsOf({a, b}, 9), "another batch size");
  SourceOptions half = options;
  half.plan.partition_count = 2;
  refused(half, "another share");

  // Writes as many rows in as many groups, with other values.
  Write("b", 31, 30, 10);
  const Status status = (*Source::Make(options))->identity().Check((*saved)->identity());
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("'" + b + "' has been rewritten"));
  Write("b", 30, 30, 10);
  EXPECT_TRUE((*Source::Make(options))->identity().Check((*saved)->identity()).ok());
}

// Row groups, pieces, batches and files end at unrelated places; one file is empty and one has a single row. Start
// positions are drawn as well, including the end.
TEST_F(ReaderTest, GivesEveryRowOnceInOrderWhateverTheBorders) {
  std::mt19937 random(21);
  std::vector<std::string> files;
  int64_t rows = 0;
  for (int64_t more : {100, 0, 37, 1, 64}) {
    files.push_back(Write(std::to_string(files.size()), rows, more, 1 + random() % 40));
    rows += more;
  }
  for (int round = 0; round < 60; ++round) {
    SourceOptions options = OptionsOf(files, 1 + random() % 80, 1 + random() % 4);
    if (round % 3 != 0) options.piece_rows = 1 + random() % 50;
    const int64_t position = random() % 2 * (random() % (rows + 1));
    auto ids = ReadAll(options, position);
    ASSERT_TRUE(ids.ok()) << ids.status().ToString();
    ASSERT_EQ(static_cast<int64_t>(ids->size()), rows - position) << "round " << round;
    for (size_t i = 0; i < ids->size(); ++i) ASSERT_EQ((*ids)[i], position + static_cast<int64_t>(i));
  }
}

// Plan, decoder and reader agree on the rows that lie in pieces but not in the share.
TEST_F(ReaderTest, SharesOfAllWorkersTogetherAreTheData) {
  const std::vector<std::string> files = {Write("a", 0, 90, 20), Write("b", 90, 41, 7)};
  std::mt19937 random(22);
  for (int round = 0; round < 40; ++round) {
    SourceOptions options = OptionsOf(files, 1 + random() % 20);
    options.piece_rows = 1 + random() % 30;
    options.plan.partition_by = static_cast<PartitionBy>(round % 3);
    options.plan.partition_count = 1 + random() % 4;
    if (round % 3 != 2) options.plan.parallel_files = 1 + random() % 2;
    std::vector<int64_t> all;
    for (; options.plan.partition_index < options.plan.partition_count; ++options.plan.partition_index) {
      auto ids = ReadAll(options);
      ASSERT_TRUE(ids.ok()) << ids.status().ToString();
      all.insert(all.end(), ids->begin(), ids->end());
    }
    std::sort(all.begin(), all.end());
    ASSERT_EQ(all.size(), 131u);
    for (int64_t i = 0; i < 131; ++i) ASSERT_EQ(all[i], i);
  }
}

// Cancels at different times, from before the first batch to, maybe, after the last one: Next must return in every
// case. A reader that keeps waiting runs into the test's deadline.
TEST_F(ReaderTest, CancelEndsAWaitingReader) {
  const std::string file = Write("a", 0, 20000, 20000);
  for (int round = 0; round < 20; ++round) {
    SourceOptions options = OptionsOf({file}, 10);
    options.piece_rows = 50;
    auto source = Source::Make(options);
    ASSERT_TRUE(source.ok());
    Reader reader(*source, 0);
    std::jthread canceller([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(200 * round));
      reader.Cancel();
    });
    Status status;
    while (status.ok()) {
      auto batch = reader.Next();
      status = batch.status();
      if (batch.ok() && batch->rows == 0) break;
    }
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kCancelled) << status.ToString();
  }
}

// The second file is removed between the reading of its footer and of its rows. The five batches of the first one are
// good nevertheless, although both are decoded ahead.
TEST_F(ReaderTest, AnErrorComesBehindTheBatchesBeforeItAndStays) {
  const std::string good = Write("a", 0, 50, 50), bad = Write("b", 50, 50, 50);
  SourceOptions options = OptionsOf({good, bad}, 10);
  options.piece_rows = 10;
  auto source = Source::Make(options);
  ASSERT_TRUE(source.ok());
  std::filesystem::remove(bad);
  Reader reader(*source, 0);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(reader.Next().ok());
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(reader.Next().status().ToString(), "NOT_FOUND: file '" + bad + "' does not exist");
  }
}

// Reading a file with any content gives rows or an error that names it. A flip in a value gives another value, so
// not every round has an error. Some rounds must have one, or the damage would have no effect. Sanitizers find other
// faults.
TEST_F(ReaderTest, DamagedFilesAreErrorsAndNeverCrashes) {
  const std::string path = Write("a", 0, 300, 70);
  std::ifstream in(path, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  std::mt19937 random(23);
  int errors = 0;
  for (int round = 0; round < 400; ++round) {
    std::string damaged = whole;
    if (round % 8 == 0) {
      damaged.resize(random() % whole.size());
    } else {
      // Half of the flips hit the footer, which is a small part of the file.
      const size_t from = round % 2 == 0 ? 0 : whole.size() - 1200;
      for (size_t flips = 1 + random() % 4; flips > 0; --flips) {
        damaged[from + random() % (whole.size() - from)] ^= static_cast<char>(1 << random() % 8);
      }
    }
    std::ofstream(path, std::ios::binary).write(damaged.data(), static_cast<std::streamsize>(damaged.size()));
    Status status;
    if (auto source = Source::Make(OptionsOf({path}, 64)); source.ok()) {
      Reader reader(*source, 0);
      while (true) {
        auto batch = reader.Next();
        status = batch.status();
        if (!batch.ok() || batch->rows == 0) break;
      }
    } else {
      status = source.status();
    }
    if (status.ok()) continue;
    ++errors;
    EXPECT_THAT(status.message(), testing::StartsWith("file '" + path + "'")) << "round " << round;
  }
  EXPECT_GT(errors, 100);
}

// The column's values are 8 bytes each: not encoded, not compressed and never null. With the writer's checksums every
// flip in them is an error. Without checksums, a flip gives another value, which the format cannot tell from the
// written one.
TEST_F(ReaderTest, AFlipInThePagesOfAFileWithChecksumsIsAnErrorAlways) {
  constexpr int64_t kRows = 64;
  for (const bool checksums : {true, false}) {
    const std::string path = folder_ + "/checked";
    WriteTestIds(path, kRows, checksums);
    std::ifstream in(path, std::ios::binary);
    const std::string whole((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    // The position where the values 0 and 1 follow each other.
    const size_t values = whole.find(std::string(8, '\0') + '\1' + std::string(7, '\0'));
    ASSERT_NE(values, std::string::npos);
    for (size_t bit = 0; bit < 8 * 8 * kRows; bit += 7) {
      std::string damaged = whole;
      damaged[values + bit / 8] ^= static_cast<char>(1 << bit % 8);
      std::ofstream(path, std::ios::binary).write(damaged.data(), static_cast<std::streamsize>(damaged.size()));
      SourceOptions options = OptionsOf({path}, kRows, 1);
      options.fields = {{"id", {ValueType::kInt64, 0, {}}, {}}};
      auto source = Source::Make(options);
      ASSERT_TRUE(source.ok()) << source.status().ToString();
      const auto batch = Reader(*source, 0).Next();
      EXPECT_EQ(batch.ok(), !checksums) << "bit " << bit;
      if (batch.ok()) continue;
      EXPECT_EQ(batch.status().code(), StatusCode::kDataLoss);
      EXPECT_THAT(batch.status().message(), testing::StartsWith("file '" + path + "' column 'id': "));
    }
  }
}

}  // namespace
}  // namespace lockstep::columnar
