#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/collective/adasum.h"
#include "core/comm/job/context.h"
#include "core/testing/ranks.h"

// Measures how fast the collectives are on one host.
//
// Method: the ranks are processes, each bound to its own core. A sample is one call (for calls of up to 16 KiB: a run
// of many, divided), from the first rank's start to the last rank's end, with a barrier before it. Before each sample
// of a larger call every rank writes its input again, as training does. So the input lies in the writer's cache or
// memory, and not in the reader's. It prints the median and the best of the samples, and for 2 ranks the target if
// there is one.
//
//   lockstep_comm_benchmark [ranks]      2 without an argument

namespace lockstep {
namespace {

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// The times of the ranks, in memory that they share as forks of one process.
struct Times {
  std::atomic<double> begin[16];
  std::atomic<double> end[16];
};

enum class Unit { kMicroseconds, kGigabytesPerSecond };

// One line of the table.
struct Case {
  std::string name;
  int64_t bytes;        // per rank
  double moved = 0;     // the bytes of the rate: the buffer, or the bytes sent to others
  bool shared = false;  // whether buffers lie in shared memory
  std::function<Status(Communicator& c, char* in, char* out)> call;
  Unit target_unit = Unit::kMicroseconds;
  double target = 0;  // none
};

Case AllReduceCase(const std::string& label, int64_t bytes, bool shared) {
  return {StrCat("allreduce ", label, shared ? ", shared" : ""), bytes, static_cast<double>(bytes), shared,
          [bytes](Communicator& c, char* in, char*) {
            return c.AllReduce("benchmark", ReduceOp::kSum, DType::kFloat32, bytes / 4, in, in);
          }};
}

// One tensor: a list costs only three more additions for each tensor.
Case AdasumCase(const std::string& label, int64_t bytes, bool shared) {
  return {StrCat("adasum ", label, shared ? ", shared" : ""), bytes, static_cast<double>(bytes), shared,
          [bytes](Communicator& c, char* in, char*) {
            const int64_t count = bytes / 4;
            return AdasumAllReduce(c, "benchmark", DType::kFloat32, std::span(&count, 1), in, in);
          }};
}

Case AllToAllCase(const std::string& label, int64_t bytes, int size, bool shared) {
  return {StrCat("alltoallv ", label, " per peer", shared ? ", shared" : ""), bytes * size,
          static_cast<double>(bytes * (size - 1)), shared, [bytes](Communicator& c, char* in, char* out) {
            const std::vector<int64_t> sends(c.size(), bytes / 4);
            return c.AllToAllV("benchmark", {DType::kFloat32, 1}, sends, in,
                               [out](auto) -> Result<void*> { return static_cast<void*>(out); });
          }};
}

// A reference for the other lines: every rank copies its buffer once, on the machine in its present state.
Case CopyCase(const std::string& label, int64_t bytes) {
  return {StrCat("memcpy ", label, " on each"), bytes, static_cast<double>(bytes), false,
          [bytes](Communicator&, char* in, char* out) {
            std::memcpy(out, in, static_cast<size_t>(bytes));
            return Status();
          }};
}

std::vector<Case> AllCases(int size) {
  std::vector<Case> cases;
  cases.push_back(CopyCase("1 MiB", 1 << 20));
  cases.push_back(CopyCase("64 MiB", 64 << 20));
  for (bool shared : {false, true}) {
    for (auto [label, bytes] : {std::pair<const char*, int64_t>{"4 B", 4},
                                {"1 KiB", 1 << 10},
                                {"16 KiB", 16 << 10},
                                {"64 KiB", 64 << 10},
                                {"1 MiB", 1 << 20},
                                {"64 MiB", 64 << 20}}) {
      cases.push_back(AllReduceCase(label, bytes, shared));
      if (bytes == 4) cases.back().target = 0.6;
      if (bytes == 64 << 10) cases.back().target = 16;
      if (bytes == 64 << 20) {
        cases.back().target_unit = Unit::kGigabytesPerSecond;
        cases.back().target = shared ? 8 : 3.5;
      }
    }
    cases.push_back(AdasumCase("1 KiB", 1 << 10, shared));
    cases.push_back(AdasumCase("1 MiB", 1 << 20, shared));
    cases.push_back(AdasumCase("64 MiB", 64 << 20, shared));
    cases.push_back(AllToAllCase("64 KiB", 64 << 10, size, shared));
    cases.push_back(AllToAllCase("1 MiB", 1 << 20, size, shared));
    cases.push_back({StrCat("broadcast 1 MiB", shared ? ", shared" : ""), 1 << 20, 1 << 20, shared,
                     [](Communicator& c, char* in, char*) { return c.Broadcast("benchmark", 0, 1 << 20, in); }});
    cases.push_back({StrCat("allgather 1 MiB", shared ? ", shared" : ""), 1 << 20,
                     static_cast<double>(size - 1) * (1 << 20), shared, [](Communicator& c, char* in, char* out) {
                       return c.AllGatherV("benchmark", {DType::kUInt8, 1}, 1 << 20, in,
                                           [out](auto) -> Result<void*> { return static_cast<void*>(out); });
                     }});
  }
  return cases;
}

void Need(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  _exit(1);
}

// Returns the seconds of one sample, on rank 0; the others take part. The time runs from the earliest start to the
// latest end of all ranks, so a rank that begins late or ends early cannot make it look faster. All processes of a
// machine have the same clock.
double Sample(Communicator& c, const Case& test, Times& times, char* in, char* out, int repeats) {
  if (repeats == 1) std::memset(in, 0, static_cast<size_t>(test.bytes));
  Need(c.Barrier("before"));
  times.begin[c.rank()] = Now();
  for (int i = 0; i < repeats; ++i) Need(test.call(c, in, out));
  times.end[c.rank()] = Now();
  Need(c.Barrier("after"));
  const double begin = *std::min_element(times.begin, times.begin + c.size());
  const double end = *std::max_element(times.end, times.end + c.size());
  Need(c.Barrier("read"));
  return (end - begin) / repeats;
}

void RunCase(Communicator& c, const Case& test, Times& times) {
  const int64_t out_bytes = test.bytes * c.size();
  std::vector<char> private_in, private_out;
  std::shared_ptr<SharedBuffer> shared_in;
  if (test.shared)
    shared_in = c.AllocateShared(test.bytes);
  else
    private_in.resize(static_cast<size_t>(test.bytes));
  private_out.resize(static_cast<size_t>(out_bytes));
  char* in = test.shared ? static_cast<char*>(shared_in->data()) : private_in.data();

  const int repeats = test.bytes <= 16 << 10 ? 1000 : 1;
  const int samples = test.bytes <= 16 << 10 ? 60 : test.bytes <= 4 << 20 ? 400 : 50;
  for (int i = 0; i < 3; ++i) Sample(c, test, times, in, private_out.data(), repeats);
  std::vector<double> seconds;
  for (int i = 0; i < samples; ++i) seconds.push_back(Sample(c, test, times, in, private_out.data(), repeats));
  if (c.rank() != 0) return;
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  const double rate = test.moved / median / 1e9;
  std::string verdict;
  if (test.target > 0 && c.size() == 2) {
    const bool is_rate = test.target_unit == Unit::kGigabytesPerSecond;
    const bool reached = is_rate ? rate >= test.target : median * 1e6 <= test.target;
    verdict =
        StrCat(is_rate ? ">= " : "<= ", test.target, is_rate ? " GB/s" : " us", reached ? "  reached" : "  MISSED");
  }
  std::printf("%-34s %11.2f %11.2f %9.2f   %s\n", test.name.c_str(), median * 1e6, seconds[0] * 1e6, rate,
              verdict.c_str());
  std::fflush(stdout);
}

// Binds ranks to the cores that this process may use, in turn; more ranks than cores share.
void BindToCore(int rank) {
  cpu_set_t allowed, mine;
  CPU_ZERO(&mine);
  sched_getaffinity(0, sizeof(allowed), &allowed);
  int skip = rank % CPU_COUNT(&allowed);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed) || skip-- > 0) continue;
    CPU_SET(core, &mine);
    sched_setaffinity(0, sizeof(mine), &mine);
    return;
  }
}

int Run(int size) {
  void* memory = mmap(nullptr, sizeof(Times), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  Times& times = *static_cast<Times*>(memory);
  const std::string address = testing::FreeLocalAddress();
  std::printf("%d ranks on %ld cores\n%-34s %11s %11s %9s   target for 2 ranks\n", size, sysconf(_SC_NPROCESSORS_ONLN),
              "", "median us", "best us", "GB/s");
  testing::Ranks ranks(size, [&](int rank, const testing::Ranks::Report&) {
    BindToCore(rank);
    ContextOptions options;
    options.rank = rank;
    options.size = size;
    options.rendezvous = address;
    options.secret = "benchmark";
    Result<std::unique_ptr<Context>> context = Context::Create(options);
    Need(context.status());
    for (const Case& test : AllCases(size)) RunCase((*context)->communicator(), test, times);
    return 0;
  });
  for (const testing::Outcome& outcome : ranks.Wait(600)) {
    if (!outcome.ended || outcome.exit_code != 0) return 1;
  }
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  const int size = argc > 1 ? std::atoi(argv[1]) : 2;
  if (size < 2 || size > 16) {
    std::fprintf(stderr, "usage: %s [ranks, 2 to 16]\n", argv[0]);
    return 2;
  }
  return lockstep::Run(size);
}
