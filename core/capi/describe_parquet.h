#pragma once

// Shown by the op library, as all of this folder's functions are (capi.h).
#pragma GCC visibility push(default)
extern "C" {

// What a Parquet file holds, for Python: asked while a graph is being built, where no op can run. Reads the file's
// footer and no data.
//
// The columns of the first file that the `count` strings of `names` stand for (columnar/paths.h says what a name may
// be), as JSON, in the file's order:
//
//   {"file": path, "columns": [
//      {"name": "user", "dtype": "int64", "ragged_rank": 1, "shape": []},
//      {"name": "odd", "error": "why it cannot be read"}, ...]}
//
// dtype is TensorFlow's name, ragged_rank the number of nested lists, shape that of one innermost value ([] for a
// number). A column of a type that cannot be read spoils nobody else's. Where the file cannot be read at all:
//
//   {"code": "NOT_FOUND", "error": message}
//
// with StatusCodeName's name of the code. Bytes of names that are no UTF-8 are handed through as they are.
//
// `names` holds `count` strings, none of them null; without any the answer is INVALID_ARGUMENT. The text belongs to the
// calling thread until its next call. Never throws; any number of threads may ask at once.
const char* lockstep_describe_parquet(const char* const* names, int count);
}
#pragma GCC visibility pop
