#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "tensorflow/core/platform/env.h"

namespace lockstep {

// Syncs a checkpoint and renames it to its place, where it is complete or absent at every moment.
//
// aside: the prefix of the temporary checkpoint, in a folder of its own on the same file system as its place; the
// folder is removed. prefix: the prefix of the place. files: the number of its data files.
absl::Status CommitCheckpoint(tensorflow::Env* env, const std::string& aside, const std::string& prefix, int64_t files);

}  // namespace lockstep
