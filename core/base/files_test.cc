#include "core/base/files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace lockstep {
namespace {

TEST(Files, FilesAndFoldersAreSynced) {
  const std::string folder = testing::TempDir() + "files_test";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/a") << "text";
  EXPECT_TRUE(SyncFile(folder + "/a").ok());
  EXPECT_TRUE(SyncFolder(folder).ok());
  EXPECT_TRUE(SyncFolder("").ok());
}

TEST(Files, WhatIsNotThereIsNamed) {
  const Status status = SyncFile("/no/such/file");
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_NE(status.message().find("/no/such/file"), std::string::npos);
  EXPECT_FALSE(SyncFolder("/no/such/folder").ok());
}

}  // namespace
}  // namespace lockstep
