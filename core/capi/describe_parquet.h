#pragma once

// Exported by the op library, like all functions of this folder (capi.h).
#pragma GCC visibility push(default)
extern "C" {

// Describes the columns of a Parquet file for Python, which needs them while it builds a graph and cannot run ops yet.
// Reads the file's footer and no data.
//
// Returns the columns of the first file that the `count` strings of `names` match (columnar/paths.h defines names), as
// JSON in the file's order.
//
//   {"file": path, "columns": [
//      {"name": "user", "dtype": "int64", "ragged_rank": 1, "shape": []},
//      {"name": "odd", "error": "why it cannot be read"}, ...]}
//
// dtype is TensorFlow's name, or "null" for a column whose values are all null and have no type; ragged_rank is the
// number of nested lists; shape is the shape of one innermost value ([] for a number). A column whose type cannot be
// read does not affect the others. If the file cannot be read at all, returns:
//
//   {"code": "NOT_FOUND", "error": message}
//
// with StatusCodeName's name of the code. Bytes of names that are not UTF-8 are copied unchanged.
//
// `names` holds `count` strings, none of them null; INVALID_ARGUMENT if there is none. The text belongs to the calling
// thread until its next call. Never throws; any number of threads may call at once.
const char* lockstep_describe_parquet(const char* const* names, int count);
}
#pragma GCC visibility pop
