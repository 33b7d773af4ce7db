#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"

// Selects rows in pyarrow's form (`filters=` of pyarrow.parquet.read_table): comparisons of columns with values, in
// disjunctive normal form. A Filter only stores the text; each file resolves it for its columns (arrow/filter.h) by
// Arrow's rules. A comparison with a null is not true, so it keeps no row; `in` finds a null only if one is among its
// values.
namespace lockstep::columnar {

// A value, as text that Arrow parses once the type is known.
struct FilterValue {
  enum class Kind : uint8_t { kNull, kBool, kInt64, kUInt64, kFloat64, kString, kBinary, kDate, kTime, kUtcTime };
  Kind kind = Kind::kNull;
  std::string text;
};

// One comparison. All ops except kIn and kNotIn have exactly one value, which is not null.
struct FilterTerm {
  enum class Op : uint8_t { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };
  std::string column;
  Op op = Op::kEqual;
  std::vector<FilterValue> values;

  // Returns "('user', '>=', 3)", for messages.
  std::string ToString() const;
};

// Keeps the rows for which all terms of any inner list hold. An empty filter keeps all rows.
using Filter = std::vector<std::vector<FilterTerm>>;

// Returns a filter from the words that Python passes. The words of each term, in order:
//
//   number of the conjunction ("0", "1", ...)   column   op   number of values   values...
//
// A value is a letter for its kind and its text: n null, b bool, i int64, u uint64, f float64, s string, y binary, d
// date, t time, z time in UTC. INVALID_ARGUMENT names the part that is not valid.
Result<Filter> ParseFilter(const std::vector<std::string>& words);

}  // namespace lockstep::columnar
