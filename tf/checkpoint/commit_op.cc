// Moves a checkpoint from its temporary folder to its place, where it is complete or absent at every moment.
//
//   temporary (aside)                    final place
//   <aside>.data-0000i-of-0000N    ->    <prefix>.data-0000i-of-0000N
//   <aside>.index                  ->    <prefix>.index
//
// 1. All files are synced: no name appears in the place before its bytes are on the disk.
// 2. An existing index in the place (an older save of the same step) is removed, so that it never stands beside data of
//    another save.
// 3. The data files are renamed, then the index. For TensorFlow a checkpoint exists when its index exists, and a rename
// is
//    atomic.
// 4. The folder is synced, so that the names stay.
// 5. The temporary folder is removed, with everything that an interrupted save has left there.
//
// Remote file systems (s3://, gs://, hdfs://) have no sync; their files are complete when they are closed.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/crash_point.h"
#include "core/base/files.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/path.h"
#include "tf/bridge/convert.h"

namespace lockstep {
namespace {

namespace tf = ::tensorflow;

bool IsLocal(const std::string& path) { return path.find("://") == std::string::npos; }

class CommitCheckpointKernel : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* context) override {
    const std::string aside(context->input(0).scalar<tf::tstring>()());
    const std::string prefix(context->input(1).scalar<tf::tstring>()());
    const int64_t shards = context->input(2).scalar<int64_t>()();
    OP_REQUIRES_OK(context, Commit(context->env(), aside, prefix, shards));
  }

 private:
  static absl::Status Commit(tf::Env* env, const std::string& aside, const std::string& prefix, int64_t shards) {
    std::vector<std::string> suffixes;  // in the order in which they are renamed
    for (int64_t shard = 0; shard < shards; ++shard) {
      suffixes.push_back(absl::StrFormat(".data-%05d-of-%05d", shard, shards));
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
};

REGISTER_KERNEL_BUILDER(Name("LockstepCommitCheckpoint").Device(tf::DEVICE_CPU), CommitCheckpointKernel);

REGISTER_OP("LockstepCommitCheckpoint")
    .Input("aside: string")
    .Input("prefix: string")
    .Input("shards: int64")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::NoOutputs)
    .Doc(R"doc(
Syncs a checkpoint and renames it to its place, where it is complete or absent at every moment.

aside: the prefix of the temporary checkpoint, on the same file system as its place.
prefix: the prefix of the place.
shards: the number of its data files.
)doc");

}  // namespace
}  // namespace lockstep
