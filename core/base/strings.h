#pragma once

#include <sstream>
#include <string>

namespace lockstep {

// The text of all parts, one after another, as operator<< writes them: what messages are made of. So a char or uint8_t
// is a character and not a number, a bool is 0 or 1, a double has six digits, and a pointer is an address; a const
// char* may not be null. It sets up a stream for each call: for messages and names, not for what happens in every step.
// Thread-safe.
template <typename... Parts>
std::string StrCat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return std::move(text).str();
}

// "1, 2 and 5"; "" of an empty range. For lists that people read, as of the ranks that are missing. `items` is anything
// that std::size and a loop take.
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

// A text that may be missing, behind what joins it to another: "" where it is.
inline std::string Behind(std::string_view joint, std::string_view text) {
  return text.empty() ? "" : StrCat(joint, text);
}

}  // namespace lockstep
