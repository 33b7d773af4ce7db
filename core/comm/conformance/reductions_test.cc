#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/testing/job.h"
#include "core/testing/oracle.h"

// Every reduction of every type on every way of a tensor, in AllReduce and ReduceScatter. The random calls of
// collectives_test.cc draw their types and reductions; here all are covered.

namespace lockstep {
namespace {

using testing::FirstDifference;
using testing::RandomTensor;

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct};

// One reduction of `count` elements, with each rank's input and the expected result.
class Reduction {
 public:
  Reduction(Communicator& communicator, const JobShape& shape, ReduceOp op, DType dtype, int64_t count)
      : c_(communicator), op_(op), dtype_(dtype), count_(count) {
    std::vector<std::string> tensors;
    for (int rank = 0; rank < c_.size(); ++rank) {
      tensors.push_back(RandomTensor(dtype, count, static_cast<uint64_t>(rank) + 100 * static_cast<uint64_t>(dtype)));
    }
    mine_ = tensors[c_.rank()];
    wanted_ = WantedReduction(shape, op, dtype, tensors);
  }

  // Makes both calls, from private and from shared memory. Returns "" or the error.
  std::string Run() {
    std::string copy = mine_;
    std::string error = Run(copy.data());
    if (!error.empty()) return StrCat("private ", error);
    const auto shared = c_.AllocateShared(static_cast<int64_t>(mine_.size()));
    if (shared == nullptr) return "no shared memory";
    std::memcpy(shared->data(), mine_.data(), mine_.size());
    error = Run(static_cast<char*>(shared->data()));
    return error.empty() ? "" : StrCat("shared ", error);
  }

 private:
  // AllReduce comes last, because it overwrites its input.
  std::string Run(char* data) {
    // The last rank has the remainder, and with it the longest range.
    const int64_t each = count_ / (c_.size() + 1);
    std::vector<int64_t> counts(c_.size(), each);
    counts.back() = count_ - each * (c_.size() - 1);
    const size_t width = static_cast<size_t>(DTypeSize(dtype_));
    const size_t begin = static_cast<size_t>(each * c_.rank()) * width;
    std::string part(static_cast<size_t>(counts[c_.rank()]) * width, 'x');
    Status status = c_.ReduceScatter("scatter", op_, dtype_, counts, data, part.data());
    std::string error = Compare(status, part, wanted_.substr(begin, part.size()));
    if (!error.empty()) return StrCat("reducescatter: ", error);
    status = c_.AllReduce("reduce", op_, dtype_, count_, data, data);
    error = Compare(status, std::string(data, mine_.size()), wanted_);
    return error.empty() ? "" : StrCat("allreduce: ", error);
  }

  std::string Compare(const Status& status, const std::string& got, const std::string& wanted) const {
    return status.ok() ? FirstDifference(dtype_, got, wanted) : status.ToString();
  }

  Communicator& c_;
  const ReduceOp op_;
  const DType dtype_;
  const int64_t count_;
  std::string mine_;
  std::string wanted_;
};

class ReductionsConformanceTest : public ::testing::TestWithParam<JobShape> {};

// 16 bytes fit into an announcement, 1 KiB into a slot, and 20 KiB go staged or in place.
TEST_P(ReductionsConformanceTest, EveryTypeIsReducedOnEveryWay) {
  ExpectAllWell(GetParam(), [&](Communicator& c) -> std::string {
    for (int d = 0; d < kDTypeCount; ++d) {
      const DType dtype = static_cast<DType>(d);
      for (const ReduceOp op : kOps) {
        if (op == ReduceOp::kMean && !IsFloatingPoint(dtype)) continue;
        for (const int64_t bytes : {16, 1 << 10, 20 << 10}) {
          const int64_t count = bytes / DTypeSize(dtype);
          const std::string error = Reduction(c, GetParam(), op, dtype, count).Run();
          if (error.empty()) continue;
          return StrCat(ReduceOpName(op), " of ", count, " ", DTypeName(dtype), ", ", error);
        }
      }
    }
    return "";
  });
}

TEST_P(ReductionsConformanceTest, TheMeanOfWholeNumbersIsRefused) {
  ExpectAllWell(GetParam(), [](Communicator& c) -> std::string {
    const std::vector<int64_t> counts(c.size(), 1);
    std::vector<uint64_t> x(c.size());
    for (int d = 0; d < kDTypeCount; ++d) {
      const DType dtype = static_cast<DType>(d);
      if (IsFloatingPoint(dtype)) continue;
      const Status errors[] = {c.AllReduce("m", ReduceOp::kMean, dtype, 1, x.data(), x.data()),
                               c.ReduceScatter("m", ReduceOp::kMean, dtype, counts, x.data(), x.data())};
      for (const Status& error : errors) {
        if (error.code() != StatusCode::kInvalidArgument) return StrCat(DTypeName(dtype), ": ", error.ToString());
      }
    }
    return c.Barrier("and all is well").message();
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, ReductionsConformanceTest,
                         ::testing::ValuesIn(Tested({JobShape{"shm", 2}, JobShape{"shm", 3}, JobShape{"gloo", 2},
                                                     JobShape{"gloo", 3}, JobShape{"auto", 3, "aba"},
                                                     JobShape{"auto", 4, "aabb"}})),
                         JobShapeName);

}  // namespace
}  // namespace lockstep
