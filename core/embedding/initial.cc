#include "core/embedding/initial.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/base/hash.h"
#include "core/base/strings.h"

namespace lockstep {
namespace {

// The number of elements of a block: loops over a block have no branches, and the compiler vectorises them.
constexpr int kBlock = 16;

// These functions use only additions, multiplications, divisions and square roots, which are rounded as IEEE 754 says.
// The library's logarithm differs between processors in the last bit.

// Returns the logarithm of a positive normal number, with an error of 1e-7 relative or absolute. It uses x = m 2^e with
// m in [1/sqrt(2), sqrt(2)), and the series of log(m) = 2 artanh((m - 1) / (m + 1)).
[[gnu::always_inline]] inline float Log(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const int32_t exponent = static_cast<int32_t>(bits - 0x3F3504F3u) >> 23;
  const float m = std::bit_cast<float>(bits - (static_cast<uint32_t>(exponent) << 23));
  const float s = (m - 1) / (m + 1), t = s * s;
  const float series = 2 + t * (2.0f / 3 + t * (2.0f / 5 + t * (2.0f / 7 + t * (2.0f / 9))));
  return static_cast<float>(exponent) * 0.693147181f + s * series;
}

// Returns the negated normal quantile of a probability p in (0, 1/2], in standard deviations.
[[gnu::always_inline]] inline float LowerQuantile(float p) {
  const float q = 0.5f - p;
  const float c = 0.180625f - q * q;
  const float centre = q *
                       (3.3871327179e+00f + c * (5.0434271938e+01f + c * (1.5929113202e+02f + c * 5.9109374720e+01f))) /
                       (1 + c * (1.7895169469e+01f + c * (7.8757757664e+01f + c * 6.7187563600e+01f)));
  const float r = std::sqrt(-Log(p));
  const float n = r - 1.6f, f = r - 5;
  const float near = (1.4234372777e+00f + n * (2.7568153900e+00f + n * (1.3067284816e+00f + n * 1.7023821103e-01f))) /
                     (1 + n * (7.3700164250e-01f + n * 1.2021132975e-01f));
  const float far = (6.6579051150e+00f + f * (3.0812263860e+00f + f * (4.2868294337e-01f + f * 1.7337203997e-02f))) /
                    (1 + f * (2.4197894225e-01f + f * 1.2258202635e-02f));
  return q <= 0.425f ? centre : r <= 5 ? near : far;
}

// The probability below -2 standard deviations.
constexpr float kBelowTwo = 0.0227501319f;

}  // namespace

PhiloxBlock Philox(const PhiloxBlock& counter, uint32_t key_low, uint32_t key_high) {
  PhiloxBlock x = counter;
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * x.word[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * x.word[2];
    x = {{static_cast<uint32_t>(b >> 32) ^ x.word[1] ^ key_low, static_cast<uint32_t>(b),
          static_cast<uint32_t>(a >> 32) ^ x.word[3] ^ key_high, static_cast<uint32_t>(a)}};
    key_low += 0x9E3779B9;
    key_high += 0xBB67AE85;
  }
  return x;
}

Status InitialOptions::Validate(int64_t dim) const {
  if (kind == Kind::kRows) {
    const auto size = rows == nullptr ? 0 : static_cast<int64_t>(rows->size());
    if (size > 0 && size % dim == 0) return OkStatus();
    return InvalidArgument(StrCat("initial values: a matrix of ", size, " elements, wanted rows of ", dim));
  }
  if (!std::isfinite(a) || (kind != Kind::kConstant && !std::isfinite(b))) {
    return InvalidArgument(StrCat("initial values: parameters ", a, " and ", b, ", wanted finite ones"));
  }
  if (kind == Kind::kUniform && a > b) {
    return InvalidArgument(StrCat("initial values: uniform from ", a, " to ", b, ", wanted a range"));
  }
  if ((kind == Kind::kNormal || kind == Kind::kTruncatedNormal) && b < 0) {
    return InvalidArgument(StrCat("initial values: standard deviation ", b, ", wanted 0 or more"));
  }
  return OkStatus();
}

InitialValues::InitialValues(const InitialOptions& options, std::string_view table)
    : options_(options), stream_(Fingerprint(table, options.seed)) {}

void InitialValues::Fill(int64_t key, float* row, int64_t dim) const {
  using Kind = InitialOptions::Kind;
  const float a = options_.a, b = options_.b;
  if (options_.kind == Kind::kConstant) {
    for (int64_t i = 0; i < dim; ++i) row[i] = a;
    return;
  }
  if (options_.kind == Kind::kRows) {
    const int64_t count = static_cast<int64_t>(options_.rows->size()) / dim;
    const int64_t number = (key % count + count) % count;
    std::copy_n(options_.rows->data() + number * dim, dim, row);
    return;
  }
  const auto low = static_cast<uint32_t>(key), high = static_cast<uint32_t>(static_cast<uint64_t>(key) >> 32);
  for (int64_t begin = 0; begin < dim; begin += kBlock) {
    uint32_t words[kBlock];
    for (int i = 0; i < kBlock; i += 4) {
      const PhiloxBlock random = Philox({{low, high, static_cast<uint32_t>((begin + i) / 4), 0}},
                                        static_cast<uint32_t>(stream_), static_cast<uint32_t>(stream_ >> 32));
      for (int j = 0; j < 4; ++j) words[i + j] = random.word[j];
    }
    float values[kBlock];
    if (options_.kind == Kind::kUniform) {
      for (int i = 0; i < kBlock; ++i) values[i] = a + (b - a) * (static_cast<float>(words[i] >> 8) * 0x1p-24f);
    } else {
      // Half of the probability lies on each side of the mean; a truncated distribution has less.
      const float least = options_.kind == Kind::kNormal ? 0 : kBelowTwo;
      for (int i = 0; i < kBlock; ++i) {
        const float part = (static_cast<float>(static_cast<int32_t>(words[i] >> 1)) + 0.5f) * 0x1p-31f;
        const float distance = LowerQuantile(least + (0.5f - least) * part);
        values[i] = a + b * ((words[i] & 1) != 0 ? distance : -distance);
      }
    }
    const int64_t count = dim - begin < kBlock ? dim - begin : kBlock;
    for (int64_t i = 0; i < count; ++i) row[begin + i] = values[i];
  }
}

}  // namespace lockstep
