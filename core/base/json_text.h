#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// Returns `text` as a string of JSON, in quotes. Quotes, backslashes and control characters are escaped, as JSON
// demands. All other bytes are copied, so that a path in an encoding other than UTF-8 reaches Python unchanged. For
// small outputs of known structure, which need no library.
inline std::string JsonText(std::string_view text) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (byte < 0x20) {
      ((out += "\\u00") += kHex[byte >> 4]) += kHex[byte & 15];
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace lockstep
