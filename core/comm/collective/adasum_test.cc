#include "core/comm/collective/adasum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "core/base/float16.h"
#include "core/base/strings.h"
#include "core/testing/job.h"

namespace lockstep {
namespace {

using Tensor = std::vector<double>;

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBFloat16};

// The definition, by recursion: the first half is the largest power of two of the tensors.
Tensor Oracle(const std::vector<Tensor>& tensors) {
  if (tensors.size() == 1) return tensors[0];
  size_t half = 1;
  while (half * 2 < tensors.size()) half *= 2;
  const Tensor a = Oracle({tensors.begin(), tensors.begin() + half});
  const Tensor b = Oracle({tensors.begin() + half, tensors.end()});
  const auto dot = [](const Tensor& x, const Tensor& y) {
    return std::inner_product(x.begin(), x.end(), y.begin(), 0.0);
  };
  const double of_a = dot(a, a) == 0 ? 1 : 1 - dot(a, b) / (2 * dot(a, a));
  const double of_b = dot(b, b) == 0 ? 1 : 1 - dot(a, b) / (2 * dot(b, b));
  Tensor sum(a.size());
  for (size_t i = 0; i < sum.size(); ++i) sum[i] = of_a * a[i] + of_b * b[i];
  return sum;
}

std::string Encode(DType dtype, const Tensor& values) {
  std::string bytes;
  const auto append = [&bytes](auto value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
  for (const double value : values) {
    if (dtype == DType::kFloat64) append(value);
    if (dtype == DType::kFloat32) append(static_cast<float>(value));
    if (dtype == DType::kFloat16) append(FloatToFloat16(static_cast<float>(value)));
    if (dtype == DType::kBFloat16) append(FloatToBFloat16(static_cast<float>(value)));
  }
  return bytes;
}

Tensor Decode(DType dtype, const std::string& bytes) {
  Tensor values(bytes.size() / static_cast<size_t>(DTypeSize(dtype)));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto read = [&](auto value) {
      std::memcpy(&value, bytes.data() + i * sizeof(value), sizeof(value));
      return value;
    };
    if (dtype == DType::kFloat64) values[i] = read(double{});
    if (dtype == DType::kFloat32) values[i] = read(float{});
    if (dtype == DType::kFloat16) values[i] = Float16ToFloat(read(uint16_t{}));
    if (dtype == DType::kBFloat16) values[i] = BFloat16ToFloat(read(uint16_t{}));
  }
  return values;
}

// The tolerance for a value of 1, and in proportion for larger ones. For the 16-bit types, which are rounded once, it
// is a unit of the last place; for the others it covers the rounding of all rounds.
double Tolerance(DType dtype) {
  switch (dtype) {
    case DType::kFloat64: return 1e-13;
    case DType::kFloat32: return 4e-6;
    case DType::kFloat16: return 1.0 / 1024;
    default: return 1.0 / 128;
  }
}

// Returns multiples of 1/8 within [-2, 2), which all types hold exactly.
Tensor RandomValues(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  Tensor values(count);
  for (double& value : values) value = (static_cast<double>(random() % 32) - 16) / 8;
  return values;
}

// Tensors without elements, with one element, with a whole block and one element more, and larger than one staging.
const std::vector<int64_t> kCounts = {5, 0, 4096, 1, 4097, 100003, 300};

// Returns the input of `rank`: values for each tensor of kCounts. `seed` is the same on all ranks.
std::vector<Tensor> RandomList(int rank, uint64_t seed) {
  std::vector<Tensor> list;
  for (size_t t = 0; t < kCounts.size(); ++t) {
    list.push_back(RandomValues(kCounts[t], seed * 1000 + t * 17 + static_cast<uint64_t>(rank)));
  }
  return list;
}

std::string Join(const std::vector<std::string>& parts) {
  return std::accumulate(parts.begin(), parts.end(), std::string());
}

std::string EncodeList(DType dtype, const std::vector<Tensor>& list) {
  std::string bytes;
  for (const Tensor& tensor : list) bytes += Encode(dtype, tensor);
  return bytes;
}

// Returns the result's bytes, or the error's text.
std::string Adasum(Communicator& c, DType dtype, const std::vector<int64_t>& counts, const std::string& in) {
  std::string out(in.size(), 'x');
  const Status status = AdasumAllReduce(c, "t", dtype, counts, in.data(), out.data());
  return status.ok() ? out : status.ToString();
}

// Returns "" if all ranks have these bytes.
std::string DifferenceOverRanks(Communicator& c, const std::string& bytes) {
  std::string all;
  const Status status = c.AllGatherV("compare", {DType::kUInt8, 1}, static_cast<int64_t>(bytes.size()), bytes.data(),
                                     [&all](std::span<const int64_t> counts) -> Result<void*> {
                                       all.resize(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
                                       return static_cast<void*>(all.data());
                                     });
  if (!status.ok()) return status.ToString();
  std::string wanted;
  for (int rank = 0; rank < c.size(); ++rank) wanted += bytes;
  return all == wanted ? "" : StrCat("rank ", c.rank(), " has other bits than its peers");
}

std::string FirstDifference(DType dtype, const Tensor& got, const Tensor& wanted) {
  if (got.size() != wanted.size()) return StrCat(got.size(), " elements, wanted ", wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const double difference = std::fabs(got[i] - wanted[i]);
    if (!(difference <= Tolerance(dtype) * std::max(1.0, std::fabs(wanted[i])))) {
      return StrCat(DTypeName(dtype), " element ", i, " is ", got[i], ", wanted ", wanted[i]);
    }
  }
  return "";
}

class AdasumTest : public ::testing::TestWithParam<JobShape> {};

TEST_P(AdasumTest, EqualsTheDefinitionForEachTensorOfAList) {
  const uint64_t seed = 20060;
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  ExpectAllWell(GetParam(), [&](Communicator& c) -> std::string {
    std::vector<std::vector<Tensor>> lists;
    for (int rank = 0; rank < c.size(); ++rank) lists.push_back(RandomList(rank, seed));
    Tensor wanted;
    for (size_t t = 0; t < kCounts.size(); ++t) {
      std::vector<Tensor> tensors;
      for (const auto& list : lists) tensors.push_back(list[t]);
      const Tensor sum = Oracle(tensors);
      wanted.insert(wanted.end(), sum.begin(), sum.end());
    }
    for (const DType dtype : kTypes) {
      const std::string got = Adasum(c, dtype, kCounts, EncodeList(dtype, lists[c.rank()]));
      if (std::string error = FirstDifference(dtype, Decode(dtype, got), wanted); !error.empty()) return error;
      if (std::string error = DifferenceOverRanks(c, got); !error.empty()) return error;
    }
    return "";
  });
}

TEST_P(AdasumTest, BitsDependNeitherOnTheListNorOnTheMemory) {
  ExpectAllWell(GetParam(), [&](Communicator& c) -> std::string {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      std::vector<Tensor> list = RandomList(c.rank(), 7);
      for (Tensor& tensor : list) {
        for (double& value : tensor) value *= 1.1;  // so that sums are not exact
      }
      std::vector<std::string> alone;
      for (size_t t = 0; t < list.size(); ++t) {
        alone.push_back(Adasum(c, dtype, {kCounts[t]}, Encode(dtype, list[t])));
      }
      const std::string in = EncodeList(dtype, list);
      if (Adasum(c, dtype, kCounts, in) != Join(alone)) return "the list has other bits than its tensors alone";
      // In place, in memory that peers read.
      const auto shared = c.AllocateShared(static_cast<int64_t>(in.size()));
      if (shared == nullptr) return "no shared memory";
      std::memcpy(shared->data(), in.data(), in.size());
      const Status status = AdasumAllReduce(c, "t", dtype, kCounts, shared->data(), shared->data());
      if (!status.ok()) return status.ToString();
      if (Join(alone) != std::string(static_cast<char*>(shared->data()), in.size())) return "in place the bits differ";
    }
    return "";
  });
}

// The purpose of the formula: here the result is known without it.
TEST_P(AdasumTest, ParallelTensorsAreAveragedAndOrthogonalOnesAdded) {
  ExpectAllWell(GetParam(), [](Communicator& c) -> std::string {
    const int64_t count = 5000;
    const Tensor same = RandomValues(count, 3);
    Tensor own(count);  // this rank's elements of `same`; the others' are zero
    for (int64_t i = c.rank(); i < count; i += c.size()) own[i] = same[i];
    const std::string parallel = Adasum(c, DType::kFloat64, {count}, Encode(DType::kFloat64, same));
    const std::string orthogonal = Adasum(c, DType::kFloat64, {count}, Encode(DType::kFloat64, own));
    const std::string error = FirstDifference(DType::kFloat64, Decode(DType::kFloat64, parallel), same);
    return error.empty() ? FirstDifference(DType::kFloat64, Decode(DType::kFloat64, orthogonal), same) : error;
  });
}

// Zero on all ranks; on all but one (the last rank has no neighbour if R is odd); and almost zero: a square that is not
// a normal number.
TEST_P(AdasumTest, TensorsWithoutLengthLeaveTheOthersAsTheyAre) {
  ExpectAllWell(GetParam(), [](Communicator& c) -> std::string {
    const Tensor zero(10), one = RandomValues(10, 4), tiny(10, c.rank() == 0 ? 1.0 : 1e-160);
    for (int with = 0; with < c.size(); ++with) {
      const std::string in = EncodeList(DType::kFloat64, {zero, c.rank() == with ? one : zero, tiny});
      const Tensor got = Decode(DType::kFloat64, Adasum(c, DType::kFloat64, {10, 10, 10}, in));
      Tensor wanted = zero;
      wanted.insert(wanted.end(), one.begin(), one.end());
      wanted.insert(wanted.end(), 10, 1.0);
      if (std::string error = FirstDifference(DType::kFloat64, got, wanted); !error.empty()) return error;
    }
    return "";
  });
}

TEST_P(AdasumTest, ANumberThatIsNoneStaysInItsTensor) {
  if (GetParam().size == 1) GTEST_SKIP() << "one rank's tensors are its results";
  ExpectAllWell(GetParam(), [](Communicator& c) -> std::string {
    for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
      Tensor first(5000, 1), second(5000, 2);
      if (c.rank() == c.size() - 1) first[4999] = bad;
      const std::string in = EncodeList(DType::kFloat32, {first, second});
      const Tensor got = Decode(DType::kFloat32, Adasum(c, DType::kFloat32, {5000, 5000}, in));
      for (int64_t i = 0; i < 5000; ++i) {
        if (!std::isnan(got[i])) return StrCat("element ", i, " is ", got[i]);
        if (got[5000 + i] != 2) return StrCat("element ", i, " of the other tensor is ", got[5000 + i]);
      }
    }
    return "";
  });
}

TEST_P(AdasumTest, ArgumentsAreCheckedBeforeAnythingIsExchanged) {
  ExpectAllWell(GetParam(), [](Communicator& c) -> std::string {
    float x[2] = {};
    const auto code = [&](DType dtype, std::vector<int64_t> counts, const void* in, void* out) {
      return AdasumAllReduce(c, "bad", dtype, counts, in, out).code();
    };
    for (int d = 0; d < kDTypeCount; ++d) {
      const DType dtype = static_cast<DType>(d);
      if (IsFloatingPoint(dtype)) continue;
      const Status status = AdasumAllReduce(c, "bad", dtype, std::vector<int64_t>{1}, x, x);
      const std::string wanted = StrCat("adasum 'bad' of ", DTypeName(dtype), ", wanted a floating-point type");
      if (status != InvalidArgument(wanted)) return status.ToString();
    }
    for (const StatusCode got : {code(DType::kFloat32, {2, -1}, x, x), code(DType::kFloat32, {2}, nullptr, x),
                                 code(DType::kFloat32, {2}, x, nullptr)}) {
      if (got != StatusCode::kInvalidArgument) return "a bad argument was taken";
    }
    if (code(DType::kFloat32, {}, nullptr, nullptr) != StatusCode::kOk) return "an empty list was refused";
    return c.Barrier("and all is well").message();
  });
}

// The number of elements is equal but the division differs: no other part of the exchange could notice it.
TEST_P(AdasumTest, RanksWithOtherCountsAreFound) {
  if (GetParam().size == 1) GTEST_SKIP() << "one rank agrees with itself";
  ExpectAllWell(GetParam(), [](Communicator& c) -> std::string {
    float x[5] = {};
    const std::vector<int64_t> counts = c.rank() == 0 ? std::vector<int64_t>{2, 3} : std::vector<int64_t>{3, 2};
    const Status status = AdasumAllReduce(c, "t", DType::kFloat32, counts, x, x);
    if (status.code() != StatusCode::kFailedPrecondition) return status.ToString();
    for (const char* text : {"rank 0 called", "'t (adasum of 2 3)'", "'t (adasum of 3 2)'"}) {
      if (status.message().find(text) == std::string::npos) return status.ToString();
    }
    return c.Barrier("and all is well").message();
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, AdasumTest,
                         ::testing::Values(JobShape{"shm", 1}, JobShape{"shm", 2}, JobShape{"shm", 3},
                                           JobShape{"shm", 4}, JobShape{"shm", 8}, JobShape{"auto", 2, "ab"},
                                           JobShape{"auto", 4, "aabb"}, JobShape{"auto", 5, "abacb"}),
                         JobShapeName);

}  // namespace
}  // namespace lockstep
