#include "core/testing/oracle.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "core/base/strings.h"

// How the results are computed, independently of core/base/float16.h and the reductions of core/comm:
//
//   - a 16-bit float is decoded by its definition, sign * fraction * 2^unit, into a double, which holds it exactly;
// - an operation that the code under test computes in float is done in double and rounded to float. The double result
//   of +, * or / of two floats is so precise that a second rounding gives the result of the float operation;
// - a result is encoded by scaling it to units of the last place; nearbyint rounds it (to nearest, ties to even);
// - integers are computed in 64 bits and truncated at the end, which equals wrapping at every step. The 64 bits are
//   kept in an int64_t for every type; where order matters, the type tells a uint64 apart.

namespace lockstep::testing {
namespace {

// The layout of an IEEE-like format: sign, exponent with this bias, fraction.
struct Format {
  int fraction_bits;
  int bias;
};

// Returns the format of float16 or bfloat16.
Format FormatOf(DType dtype) { return dtype == DType::kFloat16 ? Format{10, 15} : Format{7, 127}; }

// Decodes a number. An exponent of all ones is infinity or NaN. An exponent of zeros is a subnormal: its unit is the
// unit of exponent 1, and it has no implicit leading bit.
double Decode16(uint16_t bits, Format format) {
  const int exponent_mask = 0x7fff >> format.fraction_bits;
  const int exponent = (bits >> format.fraction_bits) & exponent_mask;
  const int fraction = bits & ((1 << format.fraction_bits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == exponent_mask) {
    return fraction != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  }
  const int unit = std::max(exponent, 1) - format.bias - format.fraction_bits;
  return sign * std::ldexp(exponent == 0 ? fraction : (1 << format.fraction_bits) + fraction, unit);
}

// The inverse, rounded. The unit of the last place follows from the value's own exponent, but is at least the unit of
// the smallest normal number. So the same formula gives subnormals.
uint16_t Encode16(double value, Format format) {
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const int infinity = 0x7fff >> format.fraction_bits << format.fraction_bits;
  if (std::isnan(value)) return static_cast<uint16_t>(infinity | 1);
  if (std::isinf(value)) return static_cast<uint16_t>(sign | infinity);
  if (value == 0) return static_cast<uint16_t>(sign);
  int exponent = 0;
  std::frexp(value, &exponent);  // |value| = m * 2^exponent with m in [0.5, 1)
  const int unit = std::max(exponent - 1, 1 - format.bias) - format.fraction_bits;
  // In the default rounding mode: to nearest, ties to even.
  const int units = static_cast<int>(std::nearbyint(std::ldexp(std::fabs(value), -unit)));
  // Normal numbers carry their implicit bit into the exponent field; a fraction that was rounded up also does.
  const int bits = ((unit + format.fraction_bits + format.bias - 1) << format.fraction_bits) + units;
  return static_cast<uint16_t>(sign | std::min(bits, infinity));
}

template <typename T>
// Returns element i, by memcpy, because a string's bytes need not be aligned for T.
T At(std::string_view bytes, int64_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <typename T>
void Put(std::string& bytes, int64_t i, T value) {
  std::memcpy(bytes.data() + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

double DecodeFloat(DType dtype, std::string_view bytes, int64_t i) {
  if (dtype == DType::kFloat64) return At<double>(bytes, i);
  if (dtype == DType::kFloat32) return At<float>(bytes, i);
  return Decode16(At<uint16_t>(bytes, i), FormatOf(dtype));
}

void EncodeFloat(DType dtype, std::string& bytes, int64_t i, double value) {
  if (dtype == DType::kFloat64) return Put(bytes, i, value);
  if (dtype == DType::kFloat32) return Put(bytes, i, static_cast<float>(value));
  Put(bytes, i, Encode16(value, FormatOf(dtype)));
}

// Widens unsigned types with zeros; a uint64 keeps its bits. The default covers kUInt8 and kBool.
int64_t DecodeInt(DType dtype, std::string_view bytes, int64_t i) {
  switch (dtype) {
    case DType::kInt8: return At<int8_t>(bytes, i);
    case DType::kInt16: return At<int16_t>(bytes, i);
    case DType::kInt32: return At<int32_t>(bytes, i);
    case DType::kInt64:
    case DType::kUInt64: return At<int64_t>(bytes, i);
    case DType::kUInt16: return At<uint16_t>(bytes, i);
    case DType::kUInt32: return At<uint32_t>(bytes, i);
    default: return At<uint8_t>(bytes, i);
  }
}

// Drops the bits that the type does not hold; signed and unsigned types of a size have the same bits.
void EncodeInt(DType dtype, std::string& bytes, int64_t i, int64_t value) {
  switch (DTypeSize(dtype)) {
    case 1: return Put(bytes, i, static_cast<int8_t>(value));
    case 2: return Put(bytes, i, static_cast<int16_t>(value));
    case 4: return Put(bytes, i, static_cast<int32_t>(value));
    default: return Put(bytes, i, value);
  }
}

// Rounds a result in double to the accumulator's type. Double has more than twice the bits of float, so rounding twice
// does no harm to +, * and /.
double Rounded(DType dtype, double value) {
  return dtype == DType::kFloat64 ? value : static_cast<double>(static_cast<float>(value));
}

double ApplyFloat(std::string_view op, DType dtype, double a, double b) {
  if (op == "sum" || op == "mean") return Rounded(dtype, a + b);
  if (op == "product") return Rounded(dtype, a * b);
  if (std::isnan(a) || std::isnan(b)) return std::nan("");
  // For equal values (zeros of either sign) the first stays.
  if (op == "min") return b < a ? b : a;
  return b > a ? b : a;
}

// Computes sums and products as unsigned numbers, because overflow of signed ones is undefined. The order is int64_t's,
// which holds the values of all types except uint64.
int64_t ApplyInt(std::string_view op, DType dtype, int64_t a, int64_t b) {
  if (op == "sum") return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  if (op == "product") return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  const bool a_is_less = dtype == DType::kUInt64 ? static_cast<uint64_t>(a) < static_cast<uint64_t>(b) : a < b;
  return (op == "min") == a_is_less ? a : b;
}

int64_t ApplyBool(std::string_view op, int64_t a, int64_t b) {
  return op == "sum" || op == "max" ? (a != 0 || b != 0) : (a != 0 && b != 0);
}

// Returns numbers of all magnitudes below 2 and of either sign. Their sums cancel and lose bits, so results depend on
// the order of summation, and tests can see it. The value 60000 is close to the largest float16, 1e-6 is a subnormal of
// it, and -3e38 is close to the limit of float and bfloat16.
double RandomFloat(DType dtype, std::mt19937_64& random) {
  const double extremes[] = {0.0, -0.0, std::numeric_limits<double>::infinity(), std::nan(""), 1e-6, 60000, -3e38};
  if (random() % 64 == 0) return Rounded(dtype, extremes[random() % std::size(extremes)]);
  return std::ldexp(static_cast<double>(static_cast<int64_t>(random())), -62);  // within [-2, 2)
}

}  // namespace

std::string RandomTensor(DType dtype, int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string bytes(static_cast<size_t>(count * DTypeSize(dtype)), '\0');
  for (int64_t i = 0; i < count; ++i) {
    if (IsFloatingPoint(dtype))
      EncodeFloat(dtype, bytes, i, RandomFloat(dtype, random));
    else if (dtype == DType::kBool)
      EncodeInt(dtype, bytes, i, static_cast<int64_t>(random() % 2));
    else
      EncodeInt(dtype, bytes, i, static_cast<int64_t>(random()));
  }
  return bytes;
}

// For floating-point types `value` holds the accumulator after each rank, in rank order.
std::string NaiveReduce(std::string_view op, DType dtype, const std::vector<std::string>& tensors) {
  std::string result = tensors[0];
  const int64_t count = static_cast<int64_t>(result.size()) / DTypeSize(dtype);
  for (int64_t i = 0; i < count; ++i) {
    if (IsFloatingPoint(dtype)) {
      double value = DecodeFloat(dtype, tensors[0], i);
      for (size_t t = 1; t < tensors.size(); ++t)
        value = ApplyFloat(op, dtype, value, DecodeFloat(dtype, tensors[t], i));
      if (op == "mean") value = Rounded(dtype, value / static_cast<double>(tensors.size()));
      EncodeFloat(dtype, result, i, value);
    } else {
      int64_t value = DecodeInt(dtype, tensors[0], i);
      for (size_t t = 1; t < tensors.size(); ++t) {
        const int64_t next = DecodeInt(dtype, tensors[t], i);
        value = dtype == DType::kBool ? ApplyBool(op, value, next) : ApplyInt(op, dtype, value, next);
      }
      EncodeInt(dtype, result, i, value);
    }
  }
  return result;
}

float NaiveBlockSum(const std::vector<float>& terms) {
  constexpr size_t kTerms = 256;
  float total = 0;
  for (size_t begin = 0; begin < terms.size(); begin += kTerms) {
    float block = terms[begin];
    for (size_t i = begin + 1; i < std::min(begin + kTerms, terms.size()); ++i) block += terms[i];
    total = begin == 0 ? block : total + block;
  }
  return total;
}

std::string FirstDifference(DType dtype, std::string_view got, std::string_view wanted) {
  if (got.size() != wanted.size()) return StrCat(got.size(), " bytes, wanted ", wanted.size());
  // The usual case first: all bytes are equal. A difference in bits below may still be two NaNs.
  if (got == wanted) return "";
  const int64_t width = DTypeSize(dtype);
  for (int64_t i = 0; i < static_cast<int64_t>(got.size()) / width; ++i) {
    if (std::memcmp(got.data() + i * width, wanted.data() + i * width, static_cast<size_t>(width)) == 0) continue;
    if (dtype == DType::kUInt64) {
      return StrCat("element ", i, " is ", At<uint64_t>(got, i), ", wanted ", At<uint64_t>(wanted, i));
    }
    if (!IsFloatingPoint(dtype)) {
      return StrCat("element ", i, " is ", DecodeInt(dtype, got, i), ", wanted ", DecodeInt(dtype, wanted, i));
    }
    const double a = DecodeFloat(dtype, got, i), b = DecodeFloat(dtype, wanted, i);
    if (!std::isnan(a) || !std::isnan(b)) return StrCat("element ", i, " is ", a, ", wanted ", b);
  }
  return "";
}

}  // namespace lockstep::testing
