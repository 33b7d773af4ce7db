#pragma once

#include <sstream>
#include <string>

namespace lockstep {

// Returns the text of all parts, one after another, as operator<< writes them. So a char or uint8_t is written as a
// character, a bool as 0 or 1, a double with six digits, and a pointer as an address. A const char* may not be null.
// Each call sets up a stream, so use it for messages and names, not in each step. Thread-safe.
template <typename... Parts>
std::string StrCat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return std::move(text).str();
}

// Returns "1, 2 and 5", or "" for an empty range, for lists that people read, such as the missing ranks. `items` is
// anything that std::size and a range loop accept.
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

// Returns `joint` + `text`, or "" if `text` is empty.
inline std::string Behind(std::string_view joint, std::string_view text) {
  return text.empty() ? "" : StrCat(joint, text);
}

}  // namespace lockstep
