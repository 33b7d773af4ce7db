#include "core/fuzzing/fuzz.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace lockstep::fuzzing {
namespace {

// SplitMix64: unlike the distributions of the standard library, it gives the same numbers with every library.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    state_ += 0x9E3779B97F4A7C15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  // Returns a number below `end`, which is 1 or more. Small numbers are slightly more likely, which does no harm here.
  size_t Below(size_t end) { return Next() % end; }

 private:
  uint64_t state_;
};

// Values at which errors in lengths and counts show.
constexpr uint64_t kEdges[] = {0,
                               1,
                               2,
                               0x7F,
                               0x80,
                               0xFF,
                               0x7FFF,
                               0xFFFF,
                               0x10000,
                               0x10001,
                               0x0FFFFFFF,
                               0x10000000,
                               0x10000001,
                               0x7FFFFFFF,
                               0x80000000,
                               0xFFFFFFFF,
                               0x7FFFFFFFFFFFFFFF,
                               0x8000000000000000,
                               0xFFFFFFFFFFFFFFFF};

void Change(Random& random, const std::vector<std::string>& seeds, std::string* bytes) {
  const size_t at = bytes->empty() ? 0 : random.Below(bytes->size());
  const size_t length = bytes->empty() ? 0 : 1 + random.Below(std::min<size_t>(bytes->size() - at, 64));
  switch (random.Below(9)) {
    case 0:  // a bit
      if (!bytes->empty()) (*bytes)[at] = static_cast<char>((*bytes)[at] ^ (1 << random.Below(8)));
      break;
    case 1:  // a byte
      if (!bytes->empty()) (*bytes)[at] = static_cast<char>(random.Next());
      break;
    case 2: {  // a little-endian number of 1 to 8 bytes, at or beside an edge
      const uint64_t value = kEdges[random.Below(std::size(kEdges))] + random.Below(3) - 1;
      const size_t width = size_t{1} << random.Below(4);
      for (size_t i = 0; i < width && at + i < bytes->size(); ++i) {
        (*bytes)[at + i] = static_cast<char>(value >> (8 * i));
      }
      break;
    }
    case 3: bytes->resize(at); break;  // truncation
    case 4: bytes->erase(at, length); break;
    case 5: bytes->insert(at, std::string(length, static_cast<char>(random.Next()))); break;
    case 6: bytes->insert(random.Below(bytes->size() + 1), bytes->substr(at, length)); break;
    case 7:  // a run of one byte
      std::fill_n(bytes->begin() + static_cast<std::ptrdiff_t>(at), length, random.Below(2) == 0 ? '\0' : '\xFF');
      break;
    default: {  // a part of a seed
      const std::string& other = seeds[random.Below(seeds.size())];
      if (other.empty()) break;
      const size_t from = random.Below(other.size());
      const std::string part = other.substr(from, 1 + random.Below(other.size() - from));
      if (random.Below(2) == 0) {
        bytes->insert(at, part);
      } else {
        bytes->replace(at, part.size(), part);
      }
    }
  }
}

}  // namespace

void Require(bool holds, std::string_view what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: this should hold and does not: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

uint32_t Take(std::string_view* bytes, uint32_t end) {
  if (bytes->empty()) return 0;
  uint32_t value = static_cast<uint8_t>(bytes->front());
  bytes->remove_prefix(1);
  if (end > 0x100 && !bytes->empty()) {
    value |= uint32_t{static_cast<uint8_t>(bytes->front())} << 8;
    bytes->remove_prefix(1);
  }
  return value % end;
}

std::string Mutate(const std::vector<std::string>& seeds, uint64_t random_seed, uint64_t number, size_t most) {
  Random random(random_seed * 0x2545F4914F6CDD1Du + number);
  std::string bytes = seeds[random.Below(seeds.size())];
  for (size_t changes = size_t{1} << random.Below(4); changes > 0; --changes) Change(random, seeds, &bytes);
  if (bytes.size() > most) bytes.resize(most);
  return bytes;
}

}  // namespace lockstep::fuzzing
