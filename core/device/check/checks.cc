#include "core/device/check/checks.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string_view>
#include <utility>

#include "core/base/float16.h"
#include "core/base/strings.h"
#include "core/comm/collective/elementwise.h"
#include "core/comm/collective/operations.h"
#include "core/comm/collective/reduce.h"

namespace lockstep::device {
namespace {

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};
constexpr DType kFloats[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16};

using Random = std::mt19937_64;

// Returns bytes that are numbers of the type. Most are near 1, and some have any bits: infinities, NaN, subnormals.
std::vector<char> Numbers(DType dtype, int64_t count, Random& random) {
  std::vector<char> bytes(count * DTypeSize(dtype));
  WithElement(dtype, [&]<typename E>(E) {
    using T = typename E::Stored;
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t bits = random();
      auto value = static_cast<T>(bits >> 8);
      if constexpr (std::is_floating_point_v<typename E::Value>) {
        const double near = static_cast<double>(static_cast<int64_t>(bits)) * 0x1p-62;
        if (bits % 16 == 0) {
          std::memcpy(&value, &bits, sizeof(T));
        } else {
          value = E::Store(static_cast<typename E::Value>(near));
        }
      }
      std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
    }
  });
  return bytes;
}

template <typename E>
bool IsSame(typename E::Stored a, typename E::Stored b) {
  if (std::memcmp(static_cast<const void*>(&a), static_cast<const void*>(&b), sizeof(a)) == 0) return true;
  if constexpr (std::is_floating_point_v<typename E::Value>) return std::isnan(E::Load(a)) && std::isnan(E::Load(b));
  return false;
}

// Returns an error that names the first element that differs.
Status Compare(DType dtype, const std::vector<char>& got, const std::vector<char>& wanted, std::string_view where) {
  return WithElement(dtype, [&]<typename E>(E) -> Status {
    using T = typename E::Stored;
    for (size_t at = 0; at + sizeof(T) <= wanted.size(); at += sizeof(T)) {
      T a, b;
      std::memcpy(&a, got.data() + at, sizeof(T));
      std::memcpy(&b, wanted.data() + at, sizeof(T));
      if (IsSame<E>(a, b)) continue;
      return Internal(
          StrCat(where, ": element ", at / sizeof(T), " is ", +E::Load(a), ", wanted ", +E::Load(b), " as on the CPU"));
    }
    return OkStatus();
  });
}

Status FirstOf(Session& session, const Status& compared) { return session.ok() ? compared : session.status(); }

// Data begins at an address that is aligned for 16 bytes, and then at one that is aligned for its type only.
std::vector<int64_t> Offsets(int64_t element_bytes) { return {0, element_bytes}; }

Status CheckReduce(Session& session, ReduceOp op, DType dtype, int num_sources, int64_t count, int64_t offset,
                   bool in_place, Random& random) {
  const int64_t size = DTypeSize(dtype), stride = offset > 0 ? count * size : (count * size + 15) / 16 * 16;
  std::vector<char> in(num_sources * stride);
  std::vector<const void*> sources;
  for (int s = 0; s < num_sources; ++s) {
    const std::vector<char> numbers = Numbers(dtype, count, random);
    std::copy(numbers.begin(), numbers.end(), in.begin() + s * stride);
    sources.push_back(in.data() + s * stride);
  }
  std::vector<char> wanted(count * size);
  FindReduce(op, dtype)(sources.data(), num_sources, count, wanted.data());

  DeviceMemory from(session, std::max<int64_t>(in.size(), 1), offset), to(session, count * size, offset);
  if (!in.empty()) from.Set(in.data());
  if (!session.ok()) return session.status();
  char* const last = from.data() + (num_sources - 1) * stride;
  session.Note(session.library().reduce(session.stream(), op, dtype, num_sources, count, from.data(), stride,
                                        in_place ? last : to.data()),
               "reduce");
  std::vector<char> got = in_place ? from.Get() : to.Get();
  if (in_place) got.erase(got.begin(), got.begin() + (num_sources - 1) * stride);
  return FirstOf(session,
                 Compare(dtype, got, wanted, StrCat(num_sources, " sources of ", count, " elements, offset ", offset)));
}

void AddReductions(const std::vector<int64_t>& sizes, std::vector<Check>& checks) {
  for (int d = 0; d < kDTypeCount; ++d) {
    const auto dtype = static_cast<DType>(d);
    for (const ReduceOp op : kOps) {
      if (FindReduce(op, dtype) == nullptr) continue;
      checks.push_back(
          {StrCat("reduce ", ReduceOpName(op), " ", DTypeName(dtype)), [=](Session& session, uint64_t seed) {
             Random random(seed);
             for (const int64_t count : sizes) {
               for (const int64_t offset : Offsets(DTypeSize(dtype))) {
                 const int num_sources = 1 + static_cast<int>(random() % 6);
                 const bool in_place = random() % 2 == 0;
                 LOCKSTEP_RETURN_IF_ERROR(
                     CheckReduce(session, op, dtype, num_sources, count, offset, in_place, random));
               }
             }
             return OkStatus();
           }});
    }
  }
}

// Checks a function from one array to another.
struct Mapping {
  DType from, to;
  // Puts the work for the device into the session's stream.
  std::function<Error(Session& session, const void* in, int64_t count, void* out)> on_device;
  std::function<void(const void* in, int64_t count, void* out)> on_cpu;
};

Status CheckMapping(Session& session, const Mapping& mapping, const std::vector<int64_t>& sizes, Random& random) {
  const int64_t in_size = DTypeSize(mapping.from), out_size = DTypeSize(mapping.to);
  for (const int64_t count : sizes) {
    for (const int64_t offset : Offsets(std::max(in_size, out_size))) {
      const std::vector<char> in = Numbers(mapping.from, count, random);
      std::vector<char> wanted(count * out_size);
      mapping.on_cpu(in.data(), count, wanted.data());
      const bool in_place = mapping.from == mapping.to && random() % 2 == 0;
      DeviceMemory from(session, count * in_size, offset), to(session, count * out_size, offset);
      from.Set(in.data());
      if (!session.ok()) return session.status();
      const DeviceMemory& result = in_place ? from : to;
      session.Note(mapping.on_device(session, from.data(), count, result.data()), "the kernel");
      const Status compared = Compare(mapping.to, result.Get(), wanted, StrCat(count, " elements, offset ", offset));
      LOCKSTEP_RETURN_IF_ERROR(FirstOf(session, compared));
    }
  }
  return OkStatus();
}

void AddMapping(std::string name, const std::vector<int64_t>& sizes, std::function<Mapping(Random&)> make,
                std::vector<Check>& checks) {
  checks.push_back({std::move(name), [sizes, make = std::move(make)](Session& session, uint64_t seed) {
                      Random random(seed);
                      return CheckMapping(session, make(random), sizes, random);
                    }});
}

void AddElementwise(const std::vector<int64_t>& sizes, std::vector<Check>& checks) {
  for (int d = 0; d < kDTypeCount; ++d) {
    const auto dtype = static_cast<DType>(d);
    AddMapping(
        StrCat("scale ", DTypeName(dtype)), sizes,
        [dtype](Random& random) {
          const double factor = static_cast<double>(static_cast<int64_t>(random())) * 0x1p-61;
          return Mapping{
              dtype, dtype,
              [=](Session& session, const void* in, int64_t count, void* out) {
                return session.library().scale(session.stream(), dtype, factor, count, in, out);
              },
              [=](const void* in, int64_t count, void* out) { lockstep::Scale(dtype, factor, in, count, out); }};
        },
        checks);
    AddMapping(
        StrCat("divide ", DTypeName(dtype)), sizes,
        [dtype](Random& random) {
          const auto divisor = static_cast<int64_t>(1 + random() % 100);
          return Mapping{
              dtype, dtype,
              [=](Session& session, const void* in, int64_t count, void* out) {
                return session.library().divide(session.stream(), dtype, divisor, count, in, out);
              },
              [=](const void* in, int64_t count, void* out) { lockstep::Divide(dtype, divisor, in, count, out); }};
        },
        checks);
    for (const ReduceOp op : kOps) {
      AddMapping(
          StrCat("fill_neutral ", ReduceOpName(op), " ", DTypeName(dtype)), sizes,
          [dtype, op](Random&) {
            return Mapping{
                dtype, dtype,
                [=](Session& session, const void*, int64_t count, void* out) {
                  return session.library().fill_neutral(session.stream(), op, dtype, count, out);
                },
                [=](const void*, int64_t count, void* out) { lockstep::FillNeutral(op, dtype, count, out); }};
          },
          checks);
    }
  }
}

// Returns the nearest 16-bit number to a double, ties to even: of the two neighbours of a first guess, which may have
// been rounded twice.
template <typename E>
uint16_t Nearest(double value) {
  const uint16_t guess = E::Store(static_cast<float>(value));
  if (std::isnan(value) || static_cast<double>(E::Load(guess)) == value) return guess;
  // Infinity stands for the number that would follow the largest one.
  const auto distance = [value](uint16_t bits) {
    const auto at = static_cast<double>(E::Load(bits));
    if (!std::isinf(at)) return std::abs(value - at);
    const auto largest = static_cast<double>(E::Load(static_cast<uint16_t>(bits - 1)));
    const auto before = static_cast<double>(E::Load(static_cast<uint16_t>(bits - 2)));
    return std::abs(value - (2 * largest - before));
  };
  if (std::isinf(E::Load(guess)) && std::abs(value) > 2 * std::abs(E::Load(static_cast<uint16_t>(guess - 1)))) {
    return guess;
  }
  uint16_t best = guess;
  for (const int step : {-1, 1}) {
    if ((guess & 0x7fff) == 0 && step < 0) continue;
    const auto other = static_cast<uint16_t>(guess + step);
    if (std::isnan(E::Load(other))) continue;
    const double difference = distance(other) - distance(best);
    if (difference < 0 || (difference == 0 && other % 2 == 0)) best = other;
  }
  return best;
}

template <typename From, typename To>
typename To::Stored Converted(typename From::Stored stored) {
  if constexpr (sizeof(typename From::Stored) == 8 && sizeof(typename To::Stored) == 2) {
    return Nearest<To>(From::Load(stored));
  } else {
    return To::Store(static_cast<typename To::Value>(From::Load(stored)));
  }
}

void ConvertOnCpu(DType from, const void* in, int64_t count, DType to, void* out) {
  WithElement(from, [&]<typename From>(From) {
    WithElement(to, [&]<typename To>(To) {
      const auto* read = static_cast<const typename From::Stored*>(in);
      auto* written = static_cast<typename To::Stored*>(out);
      for (int64_t i = 0; i < count; ++i) written[i] = Converted<From, To>(read[i]);
    });
  });
}

void AddConversion(DType from, DType to, void (*on_cpu)(DType, const void*, int64_t, DType, void*),
                   const std::vector<int64_t>& sizes, std::vector<Check>& checks) {
  AddMapping(
      StrCat("convert ", DTypeName(from), " to ", DTypeName(to)), sizes,
      [=](Random&) {
        return Mapping{from, to,
                       [=](Session& session, const void* in, int64_t count, void* out) {
                         return session.library().convert(session.stream(), from, in, count, to, out);
                       },
                       [=](const void* in, int64_t count, void* out) { on_cpu(from, in, count, to, out); }};
      },
      checks);
}

void AddConversions(const std::vector<int64_t>& sizes, std::vector<Check>& checks) {
  for (const DType from : kFloats) {
    for (const DType to : kFloats) AddConversion(from, to, &ConvertOnCpu, sizes, checks);
  }
  const std::pair<DType, DType> means[] = {{DType::kInt8, DType::kInt32},  {DType::kUInt8, DType::kInt32},
                                           {DType::kInt16, DType::kInt32}, {DType::kUInt16, DType::kInt32},
                                           {DType::kInt32, DType::kInt64}, {DType::kUInt32, DType::kInt64}};
  for (const auto& [narrow, wide] : means) {
    AddConversion(narrow, wide, &ConvertIntegers, sizes, checks);
    AddConversion(wide, narrow, &ConvertIntegers, sizes, checks);
  }
}

// Pieces lie in one array, in disorder and with gaps, and go to another one. The bytes between them must not change.
Status CheckPieces(Session& session, const std::vector<int64_t>& sizes, int num_pieces, Random& random) {
  struct Plan {
    int64_t from, to, bytes, padded;
  };
  std::vector<Plan> plans;
  int64_t from_end = 0, to_end = 0;
  for (int p = 0; p < num_pieces; ++p) {
    const int64_t alignment = int64_t{1} << random() % 5;
    const int64_t bytes = sizes[random() % sizes.size()] * alignment, padded = bytes + random() % 40;
    const auto round_up = [&](int64_t end) { return (end + alignment - 1) / alignment * alignment; };
    plans.push_back({round_up(from_end), round_up(to_end), bytes, padded});
    from_end = plans.back().from + bytes + static_cast<int64_t>(random() % 20);
    to_end = plans.back().to + padded + static_cast<int64_t>(random() % 20);
  }
  const std::vector<char> in = Numbers(DType::kUInt8, from_end + 1, random);
  std::vector<char> wanted = Numbers(DType::kUInt8, to_end + 1, random);
  DeviceMemory from(session, static_cast<int64_t>(in.size())), to(session, static_cast<int64_t>(wanted.size()));
  from.Set(in.data());
  to.Set(wanted.data());
  if (!session.ok()) return session.status();
  std::shuffle(plans.begin(), plans.end(), random);
  std::vector<Piece> pieces;
  for (const Plan& plan : plans) {
    std::copy_n(in.begin() + plan.from, plan.bytes, wanted.begin() + plan.to);
    std::fill_n(wanted.begin() + plan.to + plan.bytes, plan.padded - plan.bytes, 0);
    pieces.push_back({from.data() + plan.from, to.data() + plan.to, plan.bytes, plan.padded});
  }
  session.Note(session.library().copy_pieces(session.stream(), pieces.data(), num_pieces), "copy_pieces");
  pieces.assign(pieces.size(), Piece());  // they are copied
  return FirstOf(session, Compare(DType::kUInt8, to.Get(), wanted, StrCat(num_pieces, " pieces")));
}

// The order of core/comm/collective/adasum.cc: blocks of 4096 elements, four sums in turns.
template <typename T>
Products ProductsOnCpu(const T* a, const T* b, int64_t count) {
  Products products = {};
  for (int64_t begin = 0; begin < count; begin += 4096) {
    double sums[4][3] = {};
    for (int64_t i = begin; i < std::min(begin + 4096, count); ++i) {
      const double x = a[i], y = b[i];
      double* const sum = sums[(i - begin) % 4];
      sum[0] += x * y;
      sum[1] += x * x;
      sum[2] += y * y;
    }
    double ab = 0, aa = 0, bb = 0;
    for (const auto& sum : sums) ab += sum[0], aa += sum[1], bb += sum[2];
    products.ab += ab, products.aa += aa, products.bb += bb;
  }
  return products;
}

// Two lists of tensors in which most numbers are finite.
template <typename T>
struct Lists {
  std::vector<int64_t> counts;
  std::vector<T> a, b;
};

template <typename T>
Lists<T> MakeLists(const std::vector<int64_t>& sizes, int num_tensors, Random& random) {
  Lists<T> lists;
  std::normal_distribution<double> normal;
  for (int t = 0; t < num_tensors; ++t) {
    lists.counts.push_back(sizes[random() % sizes.size()]);
    for (int64_t i = 0; i < lists.counts.back(); ++i) {
      lists.a.push_back(static_cast<T>(normal(random)));
      lists.b.push_back(static_cast<T>(normal(random)));
    }
    if (t % 7 == 3 && lists.counts.back() > 0) lists.a.back() = std::numeric_limits<T>::infinity();
  }
  return lists;
}

template <typename T>
std::vector<char> BytesOf(const std::vector<T>& values) {
  std::vector<char> bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

template <typename T>
Status CheckProducts(Session& session, DType dtype, const std::vector<int64_t>& sizes, int num_tensors,
                     Random& random) {
  const Lists<T> lists = MakeLists<T>(sizes, num_tensors, random);
  std::vector<Products> wanted;
  int64_t at = 0;
  for (const int64_t count : lists.counts) {
    wanted.push_back(ProductsOnCpu(lists.a.data() + at, lists.b.data() + at, count));
    at += count;
  }
  DeviceMemory a(session, at * sizeof(T)), b(session, at * sizeof(T)), out(session, sizeof(Products) * num_tensors);
  a.Set(lists.a.data());
  b.Set(lists.b.data());
  if (!session.ok()) return session.status();
  std::vector<int64_t> counts = lists.counts;
  session.Note(session.library().dot_products(session.stream(), dtype, num_tensors, counts.data(), a.data(), b.data(),
                                              reinterpret_cast<Products*>(out.data())),
               "dot_products");
  std::fill(counts.begin(), counts.end(), -1);  // they are copied
  return FirstOf(session, Compare(DType::kFloat64, out.Get(), BytesOf(wanted), StrCat(num_tensors, " tensors")));
}

template <typename T>
Status CheckCombine(Session& session, DType dtype, const std::vector<int64_t>& sizes, int num_tensors, Random& random) {
  const Lists<T> lists = MakeLists<T>(sizes, num_tensors, random);
  std::vector<double> factors;
  std::vector<T> wanted;
  for (int t = 0, at = 0; t < num_tensors; ++t) {
    const double of_a = t % 7 == 3 ? 0 : std::uniform_real_distribution<double>(-1, 1)(random);
    const double of_b = t % 5 == 1 ? 0 : std::uniform_real_distribution<double>(-1, 1)(random);
    factors.insert(factors.end(), {of_a, of_b});
    for (int64_t i = 0; i < lists.counts[t]; ++i, ++at) {
      const double left = of_a == 0 && !std::isfinite(lists.a[at]) ? 0 : of_a * lists.a[at];
      wanted.push_back(static_cast<T>(left + of_b * lists.b[at]));
    }
  }
  const auto bytes = static_cast<int64_t>(lists.a.size() * sizeof(T));
  DeviceMemory a(session, bytes), b(session, bytes), out(session, bytes);
  a.Set(lists.a.data());
  b.Set(lists.b.data());
  if (!session.ok()) return session.status();
  const DeviceMemory* const results[] = {&a, &b, &out};
  const DeviceMemory& result = *results[random() % 3];
  session.Note(session.library().combine(session.stream(), dtype, num_tensors, lists.counts.data(), factors.data(),
                                         a.data(), b.data(), result.data()),
               "combine");
  factors.assign(factors.size(), 0);  // they are copied
  return FirstOf(session, Compare(dtype, result.Get(), BytesOf(wanted), StrCat(num_tensors, " tensors")));
}

template <typename T>
void AddAdasum(DType dtype, const std::vector<int64_t>& sizes, std::vector<Check>& checks) {
  checks.push_back({StrCat("dot_products ", DTypeName(dtype)), [=](Session& session, uint64_t seed) {
                      Random random(seed);
                      LOCKSTEP_RETURN_IF_ERROR(CheckProducts<T>(session, dtype, sizes, 1, random));
                      LOCKSTEP_RETURN_IF_ERROR(CheckProducts<T>(session, dtype, sizes, 9, random));
                      return CheckProducts<T>(session, dtype, {0, 1, 5}, 300, random);  // several batches
                    }});
  checks.push_back({StrCat("combine ", DTypeName(dtype)), [=](Session& session, uint64_t seed) {
                      Random random(seed);
                      LOCKSTEP_RETURN_IF_ERROR(CheckCombine<T>(session, dtype, sizes, 9, random));
                      return CheckCombine<T>(session, dtype, {0, 1, 5}, 300, random);
                    }});
}

}  // namespace

std::vector<Check> AllChecks(const std::vector<int64_t>& sizes) {
  std::vector<Check> checks;
  checks.push_back({"copy_pieces", [sizes](Session& session, uint64_t seed) {
                      Random random(seed);
                      for (const int num_pieces : {0, 1, 20}) {
                        LOCKSTEP_RETURN_IF_ERROR(CheckPieces(session, sizes, num_pieces, random));
                      }
                      return CheckPieces(session, {0, 1, 3}, 300, random);  // several batches
                    }});
  AddReductions(sizes, checks);
  AddElementwise(sizes, checks);
  AddConversions(sizes, checks);
  AddAdasum<float>(DType::kFloat32, sizes, checks);
  AddAdasum<double>(DType::kFloat64, sizes, checks);
  return checks;
}

}  // namespace lockstep::device
