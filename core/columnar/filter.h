#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"

// Which rows are wanted, as pyarrow writes it (`filters=` of pyarrow.parquet.read_table): comparisons of columns with
// values, in disjunctive normal form. Only what is said is kept here; files decide what it means for their columns
// (arrow_filter.h), by Arrow's rules: a comparison with a null is not true, so that it keeps no row; `in` finds a null
// only where one is among its values.
namespace lockstep::columnar {

// A value, as text that Arrow parses once the type is known.
struct FilterValue {
  enum class Kind : uint8_t { kNull, kBool, kInt64, kUInt64, kFloat64, kString, kBinary, kDate, kTime, kUtcTime };
  Kind kind = Kind::kNull;
  std::string text;
};

// One comparison. All but kIn and kNotIn have one value, which is no null.
struct FilterTerm {
  enum class Op : uint8_t { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };
  std::string column;
  Op op = Op::kEqual;
  std::vector<FilterValue> values;

  // "('user', '>=', 3)": for messages.
  std::string ToString() const;
};

// Rows for which all terms of any of these hold. Empty: all rows.
using Filter = std::vector<std::vector<FilterTerm>>;

// A filter from the words in which Python hands it over; for each term, in order:
//
//   number of the conjunction ("0", "1", ...)   column   op   number of values   values...
//
// where a value is a letter for its kind and its text: n null, b bool, i int64, u uint64, f float64, s string, y
// binary, d date, t time, z time in UTC. INVALID_ARGUMENT says what cannot be understood.
Result<Filter> ParseFilter(const std::vector<std::string>& words);

}  // namespace lockstep::columnar
