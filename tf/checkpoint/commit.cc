// Moves a checkpoint from its temporary folder to its place, where it is complete or absent at every moment.
//
//   temporary (aside)                    final place
//   <aside>.data-0000i-of-0000N    ->    <prefix>.data-0000i-of-0000N
//   <aside>.index                  ->    <prefix>.index
//
// 1. All files are synced: no name appears in the place before its bytes are on the disk.
// 2. An existing index in the place (an older save of the same step) is removed, so that it never stands beside data of
//    another save.
// 3. The data files are renamed, then the index. For TensorFlow a checkpoint exists when its index exists, and a
//    rename is atomic.
// 4. The folder is synced, so that the names stay.
// 5. The temporary folder is removed, with everything that an interrupted save has left there.
//
// Remote file systems (s3://, gs://, hdfs://) have no sync; their files are complete when they are closed.
#include "tf/checkpoint/commit.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/crash_point.h"
#include "core/base/files.h"
#include "tensorflow/core/platform/path.h"
#include "tf/bridge/convert.h"

namespace lockstep {

namespace tf = ::tensorflow;

namespace {

bool IsLocal(const std::string& path) { return path.find("://") == std::string::npos; }

}  // namespace

absl::Status CommitCheckpoint(tf::Env* env, const std::string& aside, const std::string& prefix, int64_t files) {
  std::vector<std::string> suffixes;  // in the order in which they are renamed
  for (int64_t file = 0; file < files; ++file) {
    suffixes.push_back(absl::StrFormat(".data-%05d-of-%05d", file, files));
  }
  suffixes.push_back(".index");
  PassCrashPoint("commit: merged");
  if (IsLocal(aside)) {
    for (const std::string& suffix : suffixes) {
      TF_RETURN_IF_ERROR(ToTensorFlow(SyncFile(aside + suffix).WithPrefix("checkpoint: ")));
    }
  }
  PassCrashPoint("commit: synced");
  if (env->FileExists(prefix + ".index").ok()) TF_RETURN_IF_ERROR(env->DeleteFile(prefix + ".index"));
  for (const std::string& suffix : suffixes) {
    TF_RETURN_IF_ERROR(env->RenameFile(aside + suffix, prefix + suffix));
    PassCrashPoint("commit: file renamed");
  }
  if (IsLocal(prefix)) {
    TF_RETURN_IF_ERROR(ToTensorFlow(SyncFolder(std::string(tf::io::Dirname(prefix))).WithPrefix("checkpoint: ")));
  }
  PassCrashPoint("commit: place synced");
  // The checkpoint is in its place: if its remains cannot be removed, the save has still succeeded.
  int64_t undeleted_files = 0, undeleted_folders = 0;
  env->DeleteRecursively(std::string(tf::io::Dirname(aside)), &undeleted_files, &undeleted_folders).IgnoreError();
  PassCrashPoint("commit: aside removed");
  return absl::OkStatus();
}

}  // namespace lockstep
