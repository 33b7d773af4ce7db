#pragma once

// Shown by the op library, as all of this folder's functions are (capi.h).
#pragma GCC visibility push(default)
extern "C" {

// What a Parquet file holds, for Python: asked while a graph is being built, where no op can run.
//
// The columns of the first file that `count` names stand for, as JSON: {"file": path, "columns": [{"name": name,
// "dtype": TensorFlow's name, "ragged_rank": number, "shape": [numbers]} or {"name": name, "error": why it cannot be
// read}, ...]}, or {"code": StatusCodeName, "error": message}. The text belongs to the calling thread until its next
// call. Never throws.
const char* lockstep_describe_parquet(const char* const* names, int count);
}
#pragma GCC visibility pop
