// Moves a checkpoint from its temporary folder to its place, where it is complete or absent at every moment.
//
//   temporary (aside)                    final place
//   <aside>.data-0000i-of-0000N    ->    <prefix>.data-0000i-of-0000C
//   <aside>.index                  ->    <prefix>.index
//
// 1. All files are synced: no name appears in the place before its bytes are on the disk.
// 2. The data files are renamed, then the index. For TensorFlow a checkpoint exists when its index exists, and a
//    rename is atomic.
// 3. The folder is synced, so that the names stay.
// 4. The temporary folder is removed, with everything that an interrupted save has left there.
//
// A session that has restored a checkpoint saves the same step again, so the place may have a checkpoint already. It
// stays complete until the new index replaces its own: C is N, or the next number that is in the name of none of its
// data files. The index has this number, and empty files fill the gap. Data files of other numbers are removed last.
//
// Remote file systems (s3://, gs://, hdfs://) have no sync; their files are complete when they are closed.
#include "tf/checkpoint/commit.h"

#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/crash_point.h"
#include "core/base/files.h"
#include "tensorflow/core/lib/io/table.h"
#include "tensorflow/core/lib/io/table_builder.h"
#include "tensorflow/core/lib/io/table_options.h"
#include "tensorflow/core/platform/path.h"
#include "tensorflow/core/protobuf/tensor_bundle.pb.h"
#include "tf/bridge/convert.h"

namespace lockstep {

namespace tf = ::tensorflow;

namespace {

bool IsLocal(const std::string& path) { return path.find("://") == std::string::npos; }

std::string DataSuffix(int64_t file, int64_t files) { return absl::StrFormat(".data-%05d-of-%05d", file, files); }

// Paths of data files, by the number of files that their names name.
using DataFiles = std::map<int64_t, std::set<std::string>>;

// Finds the data files of a prefix. A folder that is not there has none. With any other error nothing is known.
absl::Status FindDataFiles(tf::Env* env, const std::string& prefix, DataFiles* found) {
  std::vector<std::string> names;
  const std::string folder(tf::io::Dirname(prefix));
  const absl::Status listed = env->GetChildren(folder.empty() ? "." : folder, &names);
  if (absl::IsNotFound(listed)) return absl::OkStatus();
  TF_RETURN_IF_ERROR(listed);
  const std::string begin(tf::io::Basename(prefix));
  for (const std::string& name : names) {
    int file = 0, files = 0;
    if (!absl::StartsWith(name, begin) || sscanf(name.c_str() + begin.size(), ".data-%5d-of-%5d", &file, &files) != 2) {
      continue;
    }
    if (name == begin + DataSuffix(file, files)) (*found)[files].insert(tf::io::JoinPath(folder, name));
  }
  return absl::OkStatus();
}

absl::Status FindFile(tf::Env* env, const std::string& path, bool* exists) {
  const absl::Status found = env->FileExists(path);
  *exists = found.ok();
  return absl::IsNotFound(found) ? absl::OkStatus() : found;
}

// Writes a checkpoint's index again, with another number of data files.
absl::Status Renumber(tf::Env* env, const std::string& from, const std::string& to, int64_t files) {
  uint64_t size = 0;
  TF_RETURN_IF_ERROR(env->GetFileSize(from, &size));
  std::unique_ptr<tf::RandomAccessFile> source;
  TF_RETURN_IF_ERROR(env->NewRandomAccessFile(from, &source));
  tf::table::Options options;
  options.compression = tf::table::kNoCompression;  // as TensorFlow writes it
  tf::table::Table* opened = nullptr;
  TF_RETURN_IF_ERROR(tf::table::Table::Open(options, source.get(), size, &opened));
  const std::unique_ptr<tf::table::Table> table(opened);
  std::unique_ptr<tf::WritableFile> target;
  TF_RETURN_IF_ERROR(env->NewWritableFile(to, &target));
  tf::table::TableBuilder builder(options, target.get());
  const std::unique_ptr<tf::table::Iterator> entry(table->NewIterator());
  for (entry->SeekToFirst(); entry->Valid(); entry->Next()) {
    std::string value(entry->value());
    if (entry->key().empty()) {
      tf::BundleHeaderProto header;
      if (!header.ParseFromString(value)) return absl::DataLossError(absl::StrCat(from, " has no header"));
      header.set_num_shards(static_cast<int32_t>(files));
      value = header.SerializeAsString();
    }
    builder.Add(entry->key(), value);
  }
  absl::Status written = entry->status();
  if (written.ok()) {
    written = builder.Finish();
  } else {
    builder.Abandon();
  }
  TF_RETURN_IF_ERROR(written);
  return target->Close();
}

absl::Status Touch(tf::Env* env, const std::string& path) {
  std::unique_ptr<tf::WritableFile> file;
  TF_RETURN_IF_ERROR(env->NewWritableFile(path, &file));
  return file->Close();
}

absl::Status Sync(const std::string& path, Status (*sync)(const std::string&)) {
  if (!IsLocal(path)) return absl::OkStatus();
  return ToTensorFlow(sync(path).WithPrefix("checkpoint: "));
}

}  // namespace

absl::Status CommitCheckpoint(tf::Env* env, const std::string& aside, const std::string& prefix, int64_t files) {
  const std::string folder(tf::io::Dirname(prefix));
  // An error here must not count as an empty place: new data would replace data that the present index names.
  DataFiles before;
  bool exists = false;
  TF_RETURN_IF_ERROR(FindDataFiles(env, prefix, &before));
  TF_RETURN_IF_ERROR(FindFile(env, prefix + ".index", &exists));
  int64_t count = files;
  while (exists && before.contains(count)) ++count;
  PassCrashPoint("commit: merged");
  std::string index = aside + ".index";
  if (count != files) {
    index = aside + ".renumbered";
    TF_RETURN_IF_ERROR(Renumber(env, aside + ".index", index, count));
  }
  for (int64_t file = 0; file < files; ++file) {
    TF_RETURN_IF_ERROR(Sync(aside + DataSuffix(file, files), SyncFile));
  }
  TF_RETURN_IF_ERROR(Sync(index, SyncFile));
  PassCrashPoint("commit: synced");
  for (int64_t file = 0; file < files; ++file) {
    TF_RETURN_IF_ERROR(env->RenameFile(aside + DataSuffix(file, files), prefix + DataSuffix(file, count)));
    PassCrashPoint("commit: file renamed");
  }
  for (int64_t file = files; file < count; ++file) TF_RETURN_IF_ERROR(Touch(env, prefix + DataSuffix(file, count)));
  TF_RETURN_IF_ERROR(Sync(folder, SyncFolder));
  TF_RETURN_IF_ERROR(env->RenameFile(index, prefix + ".index"));
  PassCrashPoint("commit: file renamed");
  TF_RETURN_IF_ERROR(Sync(folder, SyncFolder));
  PassCrashPoint("commit: place synced");
  // The checkpoint is in its place: if remains cannot be removed, the save has still succeeded.
  for (const auto& [number, paths] : before) {
    if (number == count) continue;
    for (const std::string& path : paths) env->DeleteFile(path).IgnoreError();
  }
  int64_t undeleted_files = 0, undeleted_folders = 0;
  env->DeleteRecursively(std::string(tf::io::Dirname(aside)), &undeleted_files, &undeleted_folders).IgnoreError();
  PassCrashPoint("commit: aside removed");
  return absl::OkStatus();
}

}  // namespace lockstep
