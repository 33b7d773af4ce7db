#include "core/columnar/checksums.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace lockstep::columnar {
namespace {

using testing::HasSubstr;

// The example "abc" of FIPS 180-4.
constexpr char kOfAbc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

class ChecksumsTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/lockstep_checksums_XXXXXX";
    folder_ = mkdtemp(name);
    path_ = folder_ + "/file";
    std::ofstream(path_) << "abc";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string folder_, path_;
};

TEST_F(ChecksumsTest, AFileIsFoundByAnyOfItsNames) {
  for (const std::string& name : {path_, folder_ + "/./x/../file", "file://" + path_}) {
    const auto checksums = *Checksums::Parse({name, std::string(63, '0') + "1"});
    EXPECT_TRUE(checksums->CheckHas({path_}).ok());
    EXPECT_EQ(checksums->Verify(path_).code(), StatusCode::kDataLoss) << name;
  }
}

TEST_F(ChecksumsTest, AVerdictIsRememberedAndAMissingFileIsNot) {
  const auto checksums = *Checksums::Parse({path_, kOfAbc});
  std::filesystem::rename(path_, path_ + " away");
  EXPECT_FALSE(checksums->Verify(path_).ok());
  std::filesystem::rename(path_ + " away", path_);
  EXPECT_TRUE(checksums->Verify(path_).ok());
  std::ofstream(path_) << "abd";
  EXPECT_TRUE(checksums->Verify(path_).ok());
  const auto anew = *Checksums::Parse({path_, kOfAbc});
  EXPECT_THAT(std::string(anew->Verify(path_).message()), HasSubstr(std::string("wanted ") + kOfAbc));
}

TEST_F(ChecksumsTest, WordsThatAreNoDigestsAreRefused) {
  for (const std::string& digest : {std::string("ab"), std::string(64, 'x'), " 0" + std::string(62, '0')}) {
    EXPECT_EQ(Checksums::Parse({path_, digest}).status().code(), StatusCode::kInvalidArgument) << digest;
  }
  EXPECT_EQ(Checksums::Parse({path_}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lockstep::columnar
