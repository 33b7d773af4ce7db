#pragma once

#include <sstream>
#include <string>

namespace lockstep {

// The text of all parts, one after another, as operator<< writes them: what messages are made of.
template <typename... Parts>
std::string StrCat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return std::move(text).str();
}

// "1, 2 and 5"; "" of an empty range.
template <typename Range>
std::string JoinWithAnd(const Range& items) {
  std::ostringstream text;
  const size_t size = std::size(items);
  size_t i = 0;
  for (const auto& item : items) {
    if (i > 0) text << (i + 1 == size ? " and " : ", ");
    text << item;
    ++i;
  }
  return std::move(text).str();
}

}  // namespace lockstep
