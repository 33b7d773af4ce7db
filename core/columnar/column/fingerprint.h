#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::columnar {

// A hash of a sequence of strings and numbers (FNV-1a). It protects against accidents, not against intent. Values are
// kept in checkpoints, so a change of what is hashed makes saved positions useless.
class Fingerprint {
 public:
  // After each string comes a byte that UTF-8 does not use, so that "ab", "c" differs from "a", "bc".
  void Add(std::string_view bytes) {
    for (unsigned char byte : bytes) hash_ = (hash_ ^ byte) * 1099511628211u;
    hash_ = (hash_ ^ 0xff) * 1099511628211u;
  }
  void Add(int64_t number) { Add(std::to_string(number)); }
  int64_t value() const { return static_cast<int64_t>(hash_); }

 private:
  uint64_t hash_ = 14695981039346656037u;
};

}  // namespace lockstep::columnar
