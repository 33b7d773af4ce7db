#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace lockstep {

// Something that took time, as the timeline records it. Plain memory of fixed size, so that recording copies it and
// allocates nothing. Times are SteadyNs.
struct TraceEvent {
  enum class Kind : uint8_t {
    kStep,        // a training step; `number`
    kCollective,  // `what` is its kind, `number` its number in the lane
    kLookup,      // of a table: duplicates dropped, ids sorted by owner
    kResolve,     // of a dynamic table: keys found or taken in
  };
  static constexpr int32_t kNobody = -1;   // `late`: no rank was waited for
  static constexpr int32_t kUnknown = -2;  // `late`: some rank that is not known here
  static constexpr size_t kMostName = 95;

  Kind kind = Kind::kStep;
  int32_t lane = 0;  // of a collective: the number of its lane
  int32_t late = kNobody;
  const char* what = "";  // a literal
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t number = 0;
  int64_t wait_begin_ns = 0;
  int64_t wait_ns = 0;
  int64_t first = 0;   // collective: bytes sent; lookup: ids; resolve: keys
  int64_t second = 0;  // collective: bytes received; lookup: distinct ids; resolve: keys taken in
  char name[kMostName + 1] = {};

  // Copies a name. Longer names are cut off, between two characters of UTF-8.
  void SetName(std::string_view text) {
    size_t length = std::min(text.size(), kMostName);
    const auto continues = [&](size_t i) { return (static_cast<unsigned char>(text[i]) & 0xc0) == 0x80; };
    while (length > 0 && length < text.size() && continues(length)) --length;
    std::memcpy(name, text.data(), length);
    name[length] = '\0';
  }
};

}  // namespace lockstep
