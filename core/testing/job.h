#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <iostream>
#include <map>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "core/base/strings.h"
#include "core/comm/job/context.h"
#include "core/comm/options.h"
#include "core/testing/oracle.h"
#include "core/testing/ranks.h"
#include "core/testing/site.h"

// How tests of communicators make their jobs. A test writes what one rank does. The functions here run it on all ranks,
// as processes (faults, forks) or as threads of one process (sanitizers see them all). If the same test runs on several
// hosts at once (core/testing/site.h), each process runs the ranks of its host.
// ```cpp
// TEST_P(MyTest, SumsOnes) {
//   ExpectAllWell(GetParam(), [](Communicator& c) -> std::string {
//     float x = 1;
//     const Status status = c.AllReduce("x", ReduceOp::kSum, DType::kFloat32, 1, &x, &x);
//     if (!status.ok()) return status.ToString();
//     return x == c.size() ? "" : StrCat("x is ", x);
//   });
// }
// ```
namespace lockstep {

// Sanitizers make everything some ten times slower: sizes shrink and deadlines grow.
inline constexpr bool kSanitized = LOCKSTEP_SANITIZED;

// A backend and a number of ranks: what the conformance tests are run for.
struct JobShape {
  std::string backend;
  int size;
  std::string hosts = "";   // of each rank a letter, [size]: ranks with the same one share memory. "": all do
  std::string device = "";  // the backend of the ranks' devices (core/device/comm); "": they have none

  // The ranks of each host, in the order in which hosts reduce.
  std::vector<std::vector<int>> Hosts() const {
    std::map<char, std::vector<int>> of_letters;
    std::string order;
    for (int rank = 0; rank < size; ++rank) {
      const char letter = Letter(rank);
      if (of_letters[letter].empty()) order += letter;
      of_letters[letter].push_back(rank);
    }
    std::vector<std::vector<int>> ranks;
    for (const char letter : order) ranks.push_back(of_letters[letter]);
    return ranks;
  }
  char Letter(int rank) const {
    return !hosts.empty() ? hosts[rank] : static_cast<char>('a' + (backend == "gloo" ? rank : 0));
  }
  // The ranks that this process starts, ascending.
  std::vector<int> RanksHere() const {
    const auto& site = testing::Site::OfThisProcess();
    std::vector<int> here;
    for (int rank = 0; rank < size; ++rank) {
      if (!site || site->host == Letter(rank)) here.push_back(rank);
    }
    return here;
  }
};

// Returns a job of `ranks` ranks on each of `hosts` hosts, at most 26, over shared memory and the network.
inline JobShape OnHosts(int hosts, int ranks) {
  std::string letters;
  for (int host = 0; host < hosts; ++host) letters.append(static_cast<size_t>(ranks), static_cast<char>('a' + host));
  return {"auto", hosts * ranks, letters};
}

// Returns shapes that are only for tests that run on several hosts at once, and none elsewhere.
inline std::vector<JobShape> OnSitesOnly(std::vector<JobShape> shapes) {
  if (!testing::Site::OfThisProcess()) shapes.clear();
  return shapes;
}

inline std::string ToString(const JobShape& shape) {
  return StrCat(shape.backend, "_", shape.size, Behind("_", shape.hosts), Behind("_", shape.device));
}
inline void PrintTo(const JobShape& shape, std::ostream* stream) { *stream << ToString(shape); }
inline std::string JobShapeName(const ::testing::TestParamInfo<JobShape>& info) { return ToString(info.param); }

// The backends on which the tests of a program run. A program sets it before main.
struct TestedBackends {
  // Returns the shapes that take the place of a test's own; null: these.
  std::function<std::vector<JobShape>(const std::vector<JobShape>&)> shapes;
  // Makes the communicator of a rank with a device, over the host's.
  std::function<Result<std::unique_ptr<Communicator>>(const ContextOptions& options, Communicator& host)> on_device;
};
inline TestedBackends& BackendsOfThisProgram() {
  static TestedBackends backends;
  return backends;
}
// Returns the shapes of a test that is instantiated for these.
inline std::vector<JobShape> Tested(const std::vector<JobShape>& shapes) {
  return BackendsOfThisProgram().shapes == nullptr ? shapes : BackendsOfThisProgram().shapes(shapes);
}

// The expected reduction of the ranks' tensors: in rank order on each host, and then over the hosts in their order.
// NCCL's ranks have no hosts.
inline std::string WantedReduction(const JobShape& shape, ReduceOp op, DType dtype,
                                   const std::vector<std::string>& tensors) {
  const std::vector<std::vector<int>> hosts = shape.Hosts();
  const bool one_each = hosts.size() == tensors.size();
  if (hosts.size() == 1 || one_each || shape.device == "nccl")
    return testing::NaiveReduce(ReduceOpName(op), dtype, tensors);
  const std::string_view part = ReduceOpName(op == ReduceOp::kMean ? ReduceOp::kSum : op);
  std::vector<std::string> sums;
  for (const std::vector<int>& ranks : hosts) {
    std::vector<std::string> of_host;
    for (const int rank : ranks) of_host.push_back(tensors[rank]);
    sums.push_back(testing::NaiveReduce(part, dtype, of_host));
  }
  std::string wanted = testing::NaiveReduce(part, dtype, sums);
  if (op != ReduceOp::kMean) return wanted;
  // A mean divides by how many there are: those that are not there are added as zeros.
  std::vector<std::string> with_zeros(tensors.size(), std::string(wanted.size(), '\0'));
  with_zeros.front() = wanted;
  return testing::NaiveReduce("mean", dtype, with_zeros);
}

// Part of a rank in a test. Returns "" or what went wrong. Runs in a fork or on a thread: it returns its findings
// instead of calling EXPECT.
using Part = std::function<std::string(Communicator& communicator)>;
// Changes the options of each rank before it joins.
using Adjust = std::function<void(ContextOptions& options)>;

// Seconds after which a test's job is killed: far more than any healthy one takes.
inline constexpr double kJobDeadline_s = kSanitized ? 240 : 90;

// Timeouts are far beyond what a busy machine needs, so that only the tests that shorten them depend on time.
inline ContextOptions JobOptions(const JobShape& shape, const std::string& address, int rank) {
  ContextOptions options;
  options.rank = rank;
  options.size = shape.size;
  options.rendezvous = address;
  options.secret = "the secret of the tests";
  options.backend = shape.backend;
  options.device = shape.device;
  // On hosts of their own ranks find out for themselves.
  if (!shape.hosts.empty() && !testing::Site::OfThisProcess())
    options.host = StrCat("host ", shape.hosts.substr(rank, 1));
  options.rendezvous_timeout_s = 60;
  options.stall_timeout_s = 200;
  options.shared_bytes_per_rank = int64_t{1} << 28;
  return options;
}

// Joins the job, plays the part, and leaves, as the context ends.
inline std::string PlayPart(const ContextOptions& options, const Part& part) {
  Result<std::unique_ptr<Context>> context = Context::Create(options);
  if (!context.ok()) return context.status().ToString();
  Communicator& host = (*context)->communicator();
  if (options.device.empty()) return part(host);
  const auto communicator = BackendsOfThisProgram().on_device(options, host);
  return communicator.ok() ? part(**communicator) : communicator.status().ToString();
}

// The ranks of a job as processes. Exit code 0: the part returned ""; else what it returned is in the report.
class Job {
 public:
  // The actions of a rank that joins by itself, with these options; returns the same as a Part.
  using Joining = std::function<std::string(const ContextOptions& options)>;

  Job(const JobShape& shape, const Joining& joining)
      : here_(shape.RanksHere()),
        processes_(static_cast<int>(here_.size()),
                   [=, this, address = testing::NextRendezvousAddress()](int i, const testing::Ranks::Report& report) {
                     const std::string error = joining(JobOptions(shape, address, here_[i]));
                     report(error);
                     return error.empty() ? 0 : 1;
                   }) {}
  Job(const JobShape& shape, const Part& part, const Adjust& adjust = {})
      : Job(shape, [=](ContextOptions options) {
          if (adjust) adjust(options);
          return PlayPart(options, part);
        }) {}

  // Expects all ranks but those that are not to survive to end well and in time. To be called once for each job.
  void ExpectSurvivorsWell(const std::vector<int>& victims = {}) {
    std::vector<int> bystanders;  // as processes
    for (int i = 0; i < static_cast<int>(here_.size()); ++i) {
      if (std::find(victims.begin(), victims.end(), here_[i]) != victims.end()) bystanders.push_back(i);
    }
    const std::vector<testing::Outcome> outcomes = processes_.Wait(kJobDeadline_s, bystanders);
    for (int i = 0; i < static_cast<int>(outcomes.size()); ++i) {
      if (std::find(bystanders.begin(), bystanders.end(), i) != bystanders.end()) continue;
      EXPECT_TRUE(outcomes[i].ended) << "rank " << here_[i] << " was killed at the deadline";
      EXPECT_EQ(outcomes[i].exit_code, 0)
          << "rank " << here_[i] << ", signal " << outcomes[i].signal.value_or(0) << ": " << outcomes[i].report;
    }
  }

 private:
  const std::vector<int> here_;
  testing::Ranks processes_;
};

inline void ExpectAllWell(const JobShape& shape, const Part& part) { Job(shape, part).ExpectSurvivorsWell(); }

// The same with threads of one process, each with a communicator of its own. The process is a fork again, so that a
// hang ends at the deadline and the test stays without threads.
inline void ExpectAllWellAsThreads(const JobShape& shape, const Part& part, const Adjust& adjust = {}) {
  const std::string address = testing::NextRendezvousAddress();
  const auto body = [&](int, const testing::Ranks::Report& report) {
    std::vector<std::string> errors(shape.size);
    std::vector<std::thread> threads;
    for (const int rank : shape.RanksHere()) {
      threads.emplace_back([&, rank] {
        ContextOptions options = JobOptions(shape, address, rank);
        if (adjust) adjust(options);
        errors[rank] = PlayPart(options, part);
      });
    }
    for (std::thread& thread : threads) thread.join();
    std::string all;
    for (const std::string& error : errors) all += error;
    report(all);
    return all.empty() ? 0 : 1;
  };
  testing::Ranks process(1, body);
  const testing::Outcome outcome = process.Wait(kJobDeadline_s)[0];
  EXPECT_TRUE(outcome.ended) << "killed at the deadline";
  EXPECT_EQ(outcome.exit_code, 0) << "signal " << outcome.signal.value_or(0) << ": " << outcome.report;
}

}  // namespace lockstep
