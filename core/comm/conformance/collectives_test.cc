// Promise of this file (many_hosts.md): collectives of 64 ranks on 16 hosts equal the oracle, and report faults.

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/collective/arguments.h"
#include "core/comm/job/context.h"
#include "core/testing/job.h"
#include "core/testing/oracle.h"
#include "core/testing/ranks.h"

// Folder conformance/: tests and benchmarks of whole jobs, which check Communicator's contract on every backend.
//
// These tests have no failures: the results equal the naive oracle's, bit for bit, for random sequences of calls. All
// ranks draw the sequence from the same seed, and each can compute the others' data.

namespace lockstep {
namespace {

using testing::FirstDifference;
using testing::RandomTensor;

// A tensor of this rank, in private or shared memory by chance.
class Tensor {
 public:
  Tensor(Communicator& communicator, int64_t bytes, bool shared) {
    if (shared) shared_ = communicator.AllocateShared(bytes);
    if (shared_ == nullptr) private_.resize(static_cast<size_t>(bytes) + 1);
  }
  char* data() { return shared_ != nullptr ? static_cast<char*>(shared_->data()) : private_.data(); }
  void Fill(const std::string& bytes) { std::memcpy(data(), bytes.data(), bytes.size()); }
  std::string Bytes(int64_t bytes) { return std::string(data(), static_cast<size_t>(bytes)); }

 private:
  std::shared_ptr<SharedBuffer> shared_;
  std::vector<char> private_;
};

// Draws calls, makes them, and compares. The random numbers of `common` are equal on all ranks and determine the calls.
// The numbers of `own` differ and determine a rank's own choices: private or shared memory, in place or not. Contents
// depend only on seed, call and rank. So each rank can compute the others' inputs, and needs no second exchange to know
// the expected result.
class RandomCalls {
 public:
  RandomCalls(Communicator& communicator, const JobShape& shape, uint64_t seed, int64_t most_bytes)
      : c_(communicator),
        shape_(shape),
        seed_(seed),
        most_bytes_(most_bytes),
        common_(seed),
        own_(seed * 31 + c_.rank()) {}

  // Returns "" or the error.
  std::string Run(int calls) {
    for (number_ = 0; number_ < calls; ++number_) {
      dtype_ = static_cast<DType>(common_() % kDTypeCount);
      name_ = StrCat("call_", number_, std::string(common_() % 40, 'x'));
      const int kind = static_cast<int>(common_() % 6);
      const std::string error = kind == 0   ? AllReduce()
                                : kind == 1 ? ReduceScatter()
                                : kind == 2 ? Broadcast()
                                : kind == 3 ? AllGather()
                                : kind == 4 ? AllToAll()
                                            : c_.Barrier(name_).message();
      if (!error.empty()) {
        return StrCat("rank ", c_.rank(), ", seed ", seed_, ", call ", number_, " of kind ", kind, " on ",
                      DTypeName(dtype_), ": ", error, "\n");
      }
    }
    return "";
  }

 private:
  // Draws sizes over all orders of magnitude, including zero and sizes near the limits of the ways.
  int64_t DrawCount(std::mt19937_64& random, int64_t width) {
    const int64_t borders[] = {0, 1, 16, 1024, 16 << 10, 512 << 10};
    width = std::max<int64_t>(1, width);
    const int64_t most = most_bytes_ / width;
    if (random() % 3 == 0) {
      const int64_t count = borders[random() % std::size(borders)] / width + static_cast<int64_t>(random() % 3) - 1;
      return std::clamp<int64_t>(count, 0, most);
    }
    const int bits = static_cast<int>(random() % 23);
    return std::min<int64_t>(most, static_cast<int64_t>(random() % (uint64_t{1} << bits)));
  }

  // Returns the input of `rank` for the current call.
  std::string Content(int rank, int64_t elements) {
    return RandomTensor(dtype_, elements, seed_ * 1000003 + static_cast<uint64_t>(number_ * 64 + rank));
  }

  bool DrawShared() { return own_() % 2 == 0; }

  ReduceOp DrawOp() {
    const ReduceOp op = static_cast<ReduceOp>(common_() % 5);
    return op == ReduceOp::kMean && !IsFloatingPoint(dtype_) ? ReduceOp::kSum : op;
  }

  std::string Wanted(ReduceOp op, int64_t count) {
    std::vector<std::string> all;
    for (int rank = 0; rank < c_.size(); ++rank) all.push_back(Content(rank, count));
    return WantedReduction(shape_, op, dtype_, all);
  }

  // Large reductions are rare, because the oracle is slow.
  std::string AllReduce() {
    const ReduceOp op = DrawOp();
    const int64_t count = DrawCount(common_, DTypeSize(dtype_)), bytes = count * DTypeSize(dtype_);
    // In half of the calls all ranks have shared memory, because that is a way of its own.
    const bool all_shared = common_() % 2 == 0, in_place = own_() % 2 == 0;
    Tensor in(c_, bytes, all_shared || DrawShared()), out(c_, bytes, all_shared || DrawShared());
    in.Fill(Content(c_.rank(), count));
    const Status status = c_.AllReduce(name_, op, dtype_, count, in.data(), in_place ? in.data() : out.data());
    if (!status.ok()) return status.ToString();
    return FirstDifference(dtype_, (in_place ? in : out).Bytes(bytes), Wanted(op, count));
  }

  std::string ReduceScatter() {
    const ReduceOp op = DrawOp();
    std::vector<int64_t> counts(c_.size());
    int64_t count = 0, begin = 0;
    for (int rank = 0; rank < c_.size(); ++rank) {
      counts[rank] = common_() % 4 == 0 ? 0 : DrawCount(common_, DTypeSize(dtype_)) / c_.size();
      if (rank == c_.rank()) begin = count;
      count += counts[rank];
    }
    const int64_t width = DTypeSize(dtype_), mine = counts[c_.rank()] * width;
    const bool all_shared = common_() % 2 == 0;
    Tensor in(c_, count * width, all_shared || DrawShared()), out(c_, mine, DrawShared());
    in.Fill(Content(c_.rank(), count));
    const Status status = c_.ReduceScatter(name_, op, dtype_, counts, in.data(), out.data());
    if (!status.ok()) return status.ToString();
    return FirstDifference(dtype_, out.Bytes(mine),
                           Wanted(op, count).substr(static_cast<size_t>(begin * width), static_cast<size_t>(mine)));
  }

  std::string Broadcast() {
    const int root = static_cast<int>(common_() % static_cast<uint64_t>(c_.size()));
    const int64_t count = DrawCount(common_, DTypeSize(dtype_)), bytes = count * DTypeSize(dtype_);
    Tensor data(c_, bytes, DrawShared());
    data.Fill(Content(c_.rank(), count));
    const Status status = c_.Broadcast(name_, root, bytes, data.data());
    if (!status.ok()) return status.ToString();
    return FirstDifference(dtype_, data.Bytes(bytes), Content(root, count));
  }

  std::string AllGather() {
    const Item item = {dtype_, static_cast<int64_t>(common_() % 5)};  // also of no bytes
    std::vector<int64_t> counts(c_.size());
    std::string wanted;
    for (int rank = 0; rank < c_.size(); ++rank) {
      counts[rank] = common_() % 4 == 0 ? 0 : DrawCount(common_, item.bytes());
      wanted += Content(rank, counts[rank] * item.width);
    }
    Tensor in(c_, counts[c_.rank()] * item.bytes(), DrawShared());
    in.Fill(Content(c_.rank(), counts[c_.rank()] * item.width));
    return Receive(wanted, counts, [&](const Allocate& allocate) {
      return c_.AllGatherV(name_, item, counts[c_.rank()], in.data(), allocate);
    });
  }

  std::string AllToAll() {
    const Item item = {dtype_, static_cast<int64_t>(common_() % 5)};  // also of no bytes
    const int size = c_.size(), me = c_.rank();
    std::vector<int64_t> sends, receives;
    std::string wanted;
    int64_t mine = 0;
    for (int from = 0; from < size; ++from) {
      int64_t before = 0, for_me = 0, total = 0;
      for (int to = 0; to < size; ++to) {
        const int64_t count = common_() % 4 == 0 ? 0 : DrawCount(common_, item.bytes()) / size;
        if (from == me) sends.push_back(count);
        if (to < me) before += count;
        if (to == me) for_me = count;
        total += count;
      }
      if (from == me) mine = total;
      receives.push_back(for_me);
      wanted += Content(from, total * item.width)
                    .substr(static_cast<size_t>(before * item.bytes()), static_cast<size_t>(for_me * item.bytes()));
    }
    Tensor in(c_, mine * item.bytes(), DrawShared());
    in.Fill(Content(me, mine * item.width));
    return Receive(wanted, receives,
                   [&](const Allocate& allocate) { return c_.AllToAllV(name_, item, sends, in.data(), allocate); });
  }

  // Makes an exchange whose output is allocated when its size is known: once, and with the counts that were sent.
  std::string Receive(const std::string& wanted, const std::vector<int64_t>& wanted_counts,
                      const std::function<Status(const Allocate&)>& call) {
    Tensor out(c_, static_cast<int64_t>(wanted.size()), DrawShared());
    int allocations = 0;
    std::vector<int64_t> counts;
    const Status status = call([&](std::span<const int64_t> got) -> Result<void*> {
      ++allocations;
      counts.assign(got.begin(), got.end());
      return static_cast<void*>(out.data());
    });
    if (!status.ok()) return status.ToString();
    if (allocations != 1) return StrCat("allocated ", allocations, " times");
    if (counts != wanted_counts)
      return StrCat("counts are ", JoinWithAnd(counts), ", wanted ", JoinWithAnd(wanted_counts));
    return FirstDifference(dtype_, out.Bytes(static_cast<int64_t>(wanted.size())), wanted);
  }

  Communicator& c_;
  const JobShape shape_;
  const uint64_t seed_;
  const int64_t most_bytes_;
  std::mt19937_64 common_;
  std::mt19937_64 own_;
  int number_ = 0;
  DType dtype_ = DType::kFloat32;
  std::string name_;
};

class ConformanceTest : public ::testing::TestWithParam<JobShape> {};

// Many small calls come first, which cross the limit between inline and slot; then fewer large ones, in place and
// staged.
TEST_P(ConformanceTest, RandomCallsEqualTheOracle) {
  const uint64_t seed = 7001;
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  ExpectAllWell(GetParam(), [&](Communicator& c) {
    // With many ranks the calls are fewer and smaller: every rank computes the parts of all.
    const bool most = c.size() > 16 && !testing::Site::OfThisProcess();
    const int calls = (kSanitized ? 40 : 200) / (most ? 20 : c.size() > 8 ? 5 : 1);
    const std::string small = RandomCalls(c, GetParam(), seed, 64 << 10).Run(calls);
    return small.empty() ? RandomCalls(c, GetParam(), seed + 1, (8 << 20) / c.size()).Run((calls + 5) / 6) : small;
  });
}

// The same ranks in one address space, where a thread sanitizer can see both sides of each flag.
// Not with many: a process may have too few descriptors for the connections of all.
TEST_P(ConformanceTest, RandomCallsOfRanksThatAreThreadsEqualTheOracle) {
  if (GetParam().RanksHere().size() > 16) return;
  const uint64_t seed = 7002;
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  ExpectAllWellAsThreads(GetParam(), [&](Communicator& c) {
    return RandomCalls(c, GetParam(), seed, (1 << 20) / c.size()).Run(kSanitized ? 20 : 80);
  });
}

// Each kind of call on `count` float32, more than is staged at a time. Sums of small integers are exact, so the oracle
// is a formula. Each returns "" or the error.
class LargeCalls {
 public:
  LargeCalls(Communicator& communicator, int64_t count, bool shared)
      : c_(communicator), count_(count), tensor_(c_, count * 4, shared) {}

  std::string Run() {
    for (const auto call : {&LargeCalls::AllReduce, &LargeCalls::ReduceScatter, &LargeCalls::Broadcast,
                            &LargeCalls::AllGather, &LargeCalls::AllToAll}) {
      for (int64_t i = 0; i < count_; ++i) data_[i] = Value(c_.rank(), i);
      if (std::string error = (this->*call)(); !error.empty()) return error;
    }
    return "";
  }

 private:
  static float Value(int rank, int64_t i) { return static_cast<float>((i * 7 + rank * 13) % 101); }
  float Sum(int64_t i) const {
    float sum = 0;
    for (int rank = 0; rank < c_.size(); ++rank) sum += Value(rank, i);
    return sum;
  }
  // The elements of `count_` that belong to `rank`: from Begin(rank) up to Begin(rank + 1).
  int64_t Begin(int rank) const { return count_ * rank / c_.size(); }

  template <typename Wanted>
  static std::string Compare(const char* what, const float* got, int64_t count, const Wanted& wanted) {
    for (int64_t i = 0; i < count; ++i) {
      if (got[i] != wanted(i)) return StrCat(what, ": element ", i, " is ", got[i], ", wanted ", wanted(i));
    }
    return "";
  }

  std::string AllReduce() {
    const Status s = c_.AllReduce("large", ReduceOp::kSum, DType::kFloat32, count_, data_, data_);
    return s.ok() ? Compare("allreduce", data_, count_, [&](int64_t i) { return Sum(i); }) : s.ToString();
  }

  std::string ReduceScatter() {
    std::vector<int64_t> counts;
    for (int rank = 0; rank < c_.size(); ++rank) counts.push_back(Begin(rank + 1) - Begin(rank));
    const int64_t begin = Begin(c_.rank()), mine = counts[c_.rank()];
    std::vector<float> got(mine);
    const Status s = c_.ReduceScatter("large", ReduceOp::kSum, DType::kFloat32, counts, data_, got.data());
    if (!s.ok()) return s.ToString();
    return Compare("reducescatter", got.data(), mine, [&](int64_t i) { return Sum(begin + i); });
  }

  std::string Broadcast() {
    const int root = c_.size() - 1;
    const Status s = c_.Broadcast("large", root, count_ * 4, data_);
    return s.ok() ? Compare("broadcast", data_, count_, [&](int64_t i) { return Value(root, i); }) : s.ToString();
  }

  // The ranks' parts make one tensor of `count_` elements.
  std::string AllGather() {
    std::vector<float> got(count_);
    const int64_t begin = Begin(c_.rank());
    const Status s = c_.AllGatherV("large", {DType::kFloat32, 1}, Begin(c_.rank() + 1) - begin, data_ + begin,
                                   [&](auto) -> Result<void*> { return static_cast<void*>(got.data()); });
    if (!s.ok()) return s.ToString();
    int from = 0;
    return Compare("allgather", got.data(), count_, [&](int64_t i) {
      while (from + 1 < c_.size() && i >= Begin(from + 1)) ++from;
      return Value(from, i);
    });
  }

  // Sends everything to the next rank.
  std::string AllToAll() {
    std::vector<int64_t> sends(c_.size(), 0);
    sends[(c_.rank() + 1) % c_.size()] = count_;
    std::vector<float> got(count_);
    const Status s = c_.AllToAllV("large", {DType::kFloat32, 1}, sends, data_,
                                  [&](auto) -> Result<void*> { return static_cast<void*>(got.data()); });
    if (!s.ok()) return s.ToString();
    const int from = (c_.rank() + c_.size() - 1) % c_.size();
    return Compare("alltoall", got.data(), count_, [&](int64_t i) { return Value(from, i); });
  }

  Communicator& c_;
  const int64_t count_;
  Tensor tensor_;
  float* const data_ = reinterpret_cast<float*>(tensor_.data());
};

TEST_P(ConformanceTest, LargeTensorsArePipelined) {
  ExpectAllWell(GetParam(), [&](Communicator& c) -> std::string {
    // On few ranks, each rank's share is many pieces. More ranks have less data, because all ranks check everything.
    // Emulated devices are slow.
    const int64_t bytes = !GetParam().device.empty() ? 8 << 20 : kSanitized ? 40 << 20 : 64 << 20;
    const int64_t count = bytes / 4 / (c.size() > 16 ? 128 : c.size() > 5 ? 32 : c.size() > 3 ? 8 : 1) + 3;
    const std::string error = LargeCalls(c, count, false).Run();
    return error.empty() ? LargeCalls(c, count, true).Run() : error;
  });
}

// All ranks make the same mistake, and none waits for another: the barrier after it is the first exchange.
TEST_P(ConformanceTest, ArgumentsAreCheckedBeforeAnythingIsExchanged) {
  ExpectAllWell(GetParam(), [&](Communicator& c) -> std::string {
    float x = 0;
    const std::vector<float> each(c.size(), 0);
    const std::vector<int64_t> ones(c.size(), 1), too_many(c.size() + 1, 0), negative(c.size(), -1);
    const Allocate none = [](auto) -> Result<void*> { return nullptr; };
    const Status errors[] = {
        c.AllReduce("a", ReduceOp::kMean, DType::kInt32, 1, &x, &x),
        c.AllReduce("a", ReduceOp::kSum, DType::kFloat32, -1, &x, &x),
        c.AllReduce("a", ReduceOp::kSum, DType::kFloat32, 1, nullptr, &x),
        c.ReduceScatter("a", ReduceOp::kSum, DType::kFloat32, too_many, &x, &x),
        c.ReduceScatter("a", ReduceOp::kSum, DType::kFloat32, ones, each.data(), nullptr),
        c.Broadcast("a", c.size(), 4, &x),
        c.Broadcast("a", 0, 4, nullptr),
        c.AllGatherV("a", {DType::kFloat32, 1}, -1, &x, none),
        c.AllToAllV("a", {DType::kFloat32, 1}, negative, &x, none),
        c.AllToAllV("a", {DType::kFloat32, 1}, ones, nullptr, none),
        c.Decline("a", OkStatus()),
    };
    for (const Status& error : errors) {
      if (error.code() != StatusCode::kInvalidArgument) return StrCat("got ", error.ToString());
    }
    return c.Barrier("and all is well").message();
  });
}

// Rank 0 has no memory for what it receives, but still has to send: in a slot (10 items) and staged. Few ranks send 4
// MiB or more each; of many, each sends to all, so their messages are smaller.
TEST_P(ConformanceTest, AFailedAllocationConcernsItsRankAlone) {
  ExpectAllWell(GetParam(), [&](Communicator& c) -> std::string {
    for (int64_t count : {10, (4 << 20) / c.size() / (c.size() > 16 ? 16 : 1)}) {
      std::vector<int32_t> in(count * c.size(), c.rank()), out(count * c.size());
      const std::vector<int64_t> sends(c.size(), count);
      const Allocate allocate = [&](auto) -> Result<void*> {
        if (c.rank() == 0) return ResourceExhausted("no memory today");
        return static_cast<void*>(out.data());
      };
      const Status gathered = c.AllGatherV("g", {DType::kInt32, 1}, count, in.data(), allocate);
      const Status exchanged = c.AllToAllV("a", {DType::kInt32, 1}, sends, in.data(), allocate);
      for (const Status& status : {gathered, exchanged}) {
        if (c.rank() == 0 && status != ResourceExhausted("no memory today")) return status.ToString();
        if (c.rank() != 0 && !status.ok()) return status.ToString();
      }
      if (c.rank() != 0 && out[count] != 1) return "wrong data";
    }
    return c.Barrier("and all is well").message();
  });
}

// Checks the relay ranks and data that goes through them: first to the relay ranks, then to every rank.
TEST_P(ConformanceTest, CarriersAreOfTheOwnHostAndReachEverybody) {
  const std::vector<std::vector<int>> hosts = GetParam().Hosts();
  const bool several = std::any_of(hosts.begin(), hosts.end(), [](const auto& ranks) { return ranks.size() > 1; });
  const bool wanted = hosts.size() > 1 && several;
  ExpectAllWell(GetParam(), [&](Communicator& c) -> std::string {
    if (c.num_hosts() != static_cast<int>(hosts.size())) return StrCat(c.num_hosts(), " hosts");
    if (c.relay_ranks().empty() == wanted) return StrCat("carriers of ", c.relay_ranks().size(), " ranks");
    if (!wanted) return "";
    const auto& own = *std::find_if(hosts.begin(), hosts.end(), [&](const std::vector<int>& ranks) {
      return std::find(ranks.begin(), ranks.end(), c.rank()) != ranks.end();
    });
    const auto is_here = [&](int rank) { return std::find(own.begin(), own.end(), rank) != own.end(); };
    std::vector<int64_t> sends(c.size());
    for (int r = 0; r < c.size(); ++r) {
      const int relay = c.relay_ranks()[r];
      if (!is_here(relay) || (is_here(r) && relay != r)) return StrCat("rank ", r, " is carried to by ", relay);
      ++sends[relay];
    }
    // A value from each rank of the host to each rank of the job arrives at the relay rank, and nothing leaves the
    // host.
    std::vector<int32_t> in(c.size(), c.rank()), out;
    std::vector<int64_t> counts;
    const Status status =
        c.AllToAllV("letters", {DType::kInt32, 1}, sends, in.data(), [&](std::span<const int64_t> of) -> Result<void*> {
          counts.assign(of.begin(), of.end());
          out.resize(SumOf(of));
          return static_cast<void*>(out.data());
        });
    if (!status.ok()) return status.ToString();
    size_t next = 0;
    for (int r = 0; r < c.size(); ++r) {
      if (counts[r] != (is_here(r) ? sends[c.rank()] : 0)) return StrCat(counts[r], " letters from rank ", r);
      for (int64_t i = 0; i < counts[r]; ++i) {
        if (out[next++] != r) return StrCat("a letter of rank ", out[next - 1], " from rank ", r);
      }
    }
    return "";
  });
}

// 1024 MiB is more than the 256 MiB of a test's rank.
TEST_P(ConformanceTest, SharedMemoryRunsOutAndComesBack) {
  ExpectAllWell(GetParam(), [&](Communicator& c) -> std::string {
    std::vector<std::shared_ptr<SharedBuffer>> buffers;
    while (auto buffer = c.AllocateShared(1 << 20)) buffers.push_back(buffer);
    if (buffers.empty()) return "no shared memory at all";
    if (buffers.size() > 1024) return "more than there is";
    if (c.AllocateShared(-1) != nullptr) return "a negative size";
    const size_t before = buffers.size();
    // Buffers that were freed in any order join to one free range again.
    std::mt19937_64 random(5);
    std::shuffle(buffers.begin(), buffers.end(), random);
    buffers.clear();
    const auto whole = c.AllocateShared(static_cast<int64_t>(before) << 20);
    return whole == nullptr ? "the freed memory is in pieces" : "";
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, ConformanceTest,
                         ::testing::ValuesIn(Tested({JobShape{"shm", 1}, JobShape{"shm", 2}, JobShape{"shm", 3},
                                                     JobShape{"shm", 4}, JobShape{"shm", 5}, JobShape{"shm", 8},
                                                     JobShape{"shm", 16}, JobShape{"gloo", 2}, JobShape{"gloo", 3},
                                                     JobShape{"gloo", 5}, JobShape{"auto", 2, "ab"},
                                                     JobShape{"auto", 4, "aabb"}, JobShape{"auto", 3, "aab"},
                                                     JobShape{"auto", 5, "abacb"}, JobShape{"auto", 8, "aaabbbcc"}})),
                         JobShapeName);
// 64 ranks on 16 hosts. `make test-hosts` runs it on emulated hosts (tests/hosts/conformance_test.py).
INSTANTIATE_TEST_SUITE_P(AtScale, ConformanceTest, ::testing::ValuesIn(Tested({OnHosts(16, 4)})), JobShapeName);

}  // namespace
}  // namespace lockstep
