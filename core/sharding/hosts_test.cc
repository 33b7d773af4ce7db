// Promise of this file (many_hosts.md): lookups and updates of 64 ranks equal the results of one rank, bit for bit.
// Promise of this file (algorithms.md): exchanges and payload of a step are the page's functions of ranks and tables.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "core/base/hash.h"
#include "core/base/strings.h"
#include "core/comm/collective/communicator.h"
#include "core/embedding/optimizer/adagrad.h"
#include "core/embedding/optimizer/update.h"
#include "core/sharding/lookup.h"
#include "core/sharding/placement.h"
#include "core/telemetry/lane_counters.h"
#include "core/testing/job.h"

// Sharded tables that are trained by ranks on several hosts, over shared memory and the network, in one stage and in
// two. One rank with whole tables is the oracle: lookups, updated rows and slots equal its bit for bit.

namespace lockstep {
namespace {

struct Table {
  std::string name;
  Placement placement;
  int64_t width;
};

// Tables by rows, by blocks from another rank on, and whole on the last rank, in turn.
std::vector<Table> Tables(int count, int size) {
  const std::vector<Table> kinds = {
      {"user", 1000, 8}, {"item", {3000, 4, size / 2}, 16}, {"country", {40, 40, size - 1}, 4}};
  std::vector<Table> tables;
  for (int t = 0; t < count; ++t) {
    tables.push_back(kinds[t % kinds.size()]);
    tables.back().name += StrCat("_", t);
  }
  return tables;
}

// The numbers of a training, the same on all ranks: each rank can compute the others' numbers. `at` names the number.
float Number(std::initializer_list<int64_t> at) {
  uint64_t bits = 11;
  for (const int64_t part : at) bits = MixBits(bits ^ static_cast<uint64_t>(part));
  return static_cast<float>(bits % 20001) / 10000 - 1;  // within [-1, 1]
}
float InitialWeight(int t, int64_t row, int64_t column) { return Number({1, t, row, column}); }
constexpr float kInitialSlot = 0.1f;
// A rank's gradient of one position of its ids.
float Gradient(int step, int rank, int t, int64_t position, int64_t column) {
  return Number({2, step, rank, t, position, column});
}

// Returns a rank's ids: up to 150, mostly low ones, so that ranks have many in common; sometimes none.
std::vector<int64_t> Ids(int step, int rank, int t, const Table& table) {
  std::mt19937_64 random(static_cast<uint64_t>((step * 1000 + rank) * 100 + t));
  std::vector<int64_t> ids(random() % 4 * 50);
  for (int64_t& id : ids) {
    const double x = static_cast<double>(random() % 10000) / 10000;
    id = static_cast<int64_t>(x * x * x * static_cast<double>(table.placement.rows));
  }
  return ids;
}

UpdateRule Rule() {
  const AdagradOptions options{
      .learning_rate = 0.1f, .epsilon = 1e-7f, .epsilon_place = AdagradOptions::Epsilon::kInside};
  return *options.Rule(DType::kFloat32);
}

// Rows of one table and their slots, on one rank: of its shard, or of the whole table.
struct Rows {
  int64_t width;
  std::vector<float> weights, slots;

  void Update(std::span<const uint32_t> numbers, const float* gradients) {
    UpdateTarget target = {};
    target.rows = RowView::Contiguous(weights.data(), width * 4);
    target.slots[0] = RowView::Contiguous(slots.data(), width * 4);
    target.dim = width;
    ApplyUpdate(target, Rule(), numbers, gradients, Serially);
  }

  static void Serially(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& work) {
    if (count > 0) work(0, count);
  }
};

// One rank that has all tables, and knows the ids and gradients of all.
class Oracle {
 public:
  // relays: for one stage empty; for two, the relay rank of each rank for each owner, [R, R].
  Oracle(const std::vector<Table>& tables, int size, std::vector<std::vector<int>> relays)
      : tables_(tables), size_(size), relays_(std::move(relays)) {
    for (int t = 0; t < static_cast<int>(tables.size()); ++t) {
      const int64_t width = tables[t].width, rows = tables[t].placement.rows;
      Rows whole{width, {}, std::vector<float>(rows * width, kInitialSlot)};
      for (int64_t i = 0; i < rows * width; ++i) whole.weights.push_back(InitialWeight(t, i / width, i % width));
      whole_.push_back(std::move(whole));
    }
  }

  const Rows& whole(int t) const { return whole_[t]; }

  // Sums a row's gradients as the ranks do. First each rank sums its own, in the order of its ids. With two stages,
  // each relay rank adds the sums of its host, in the order of the ranks. The owner's update adds these sums in the
  // order of their ranks.
  void Step(int step) {
    for (int t = 0; t < static_cast<int>(tables_.size()); ++t) {
      std::map<std::pair<int, int64_t>, std::vector<float>> sums;  // of (relay) rank and row
      for (int rank = 0; rank < size_; ++rank) AddOfRank(step, rank, t, sums);
      std::vector<uint32_t> numbers;
      std::vector<float> gradients;
      for (const auto& [place, sum] : sums) {
        numbers.push_back(static_cast<uint32_t>(place.second));
        gradients.insert(gradients.end(), sum.begin(), sum.end());
      }
      whole_[t].Update(numbers, gradients.data());
    }
  }

 private:
  void AddOfRank(int step, int rank, int t, std::map<std::pair<int, int64_t>, std::vector<float>>& sums) {
    const int64_t width = tables_[t].width;
    const std::vector<int64_t> ids = Ids(step, rank, t, tables_[t]);
    std::map<int64_t, std::vector<float>> of_rank;
    for (int64_t i = 0; i < static_cast<int64_t>(ids.size()); ++i) {
      std::vector<float>& sum = of_rank.try_emplace(ids[i], width, 0.0f).first->second;
      for (int64_t d = 0; d < width; ++d) sum[d] += Gradient(step, rank, t, i, d);
    }
    for (const auto& [id, own] : of_rank) {
      const int source = relays_.empty() ? rank : relays_[rank][tables_[t].placement.Owner(id, size_)];
      std::vector<float>& sum = sums.try_emplace({source, id}, width, 0.0f).first->second;
      for (int64_t d = 0; d < width; ++d) sum[d] += own[d];
    }
  }

  const std::vector<Table>& tables_;
  const int size_;
  const std::vector<std::vector<int>> relays_;
  std::vector<Rows> whole_;
};

// A value for each table, [T].
template <typename T>
using OfTables = std::vector<std::vector<T>>;

// One stage of a lookup in all tables, step by step like the ops.
class Stage {
 public:
  Stage(Communicator& communicator, const std::vector<Table>& tables) : c_(communicator), tables_(tables) {}

  // Sends ids to their owners, or unchanged to relay ranks.
  Status Route(const OfTables<int64_t>& ids, std::span<const int> relay_ranks) {
    std::vector<LookupIds> lookups;
    inverse_.resize(tables_.size());
    for (size_t t = 0; t < tables_.size(); ++t) {
      inverse_[t].resize(ids[t].size());
      lookups.push_back({tables_[t].name, tables_[t].placement, DType::kInt64, ids[t].data(),
                         static_cast<int64_t>(ids[t].size()), inverse_[t].data(), relay_ranks});
    }
    splits_.resize(tables_.size());
    served_.resize(tables_.size());
    const Result<RoutePlan> plan = PlanRoute(c_.size(), lookups);
    if (!plan.ok()) return c_.Decline("route", plan.status());
    return ExchangeRoute(c_, "route", *plan, splits_, [&](size_t t, int64_t count) -> Result<int64_t*> {
      served_[t].resize(count);
      return served_[t].data();
    });
  }

  // The local rows, or ids, that other ranks ask of this one.
  const OfTables<int64_t>& served() const { return served_; }
  const std::vector<Splits>& splits() const { return splits_; }

  // rows: of `served`, [M, D]. out: of the ids, [N, D].
  Status CombineRows(const OfTables<float>& rows, OfTables<float>& out) {
    std::vector<LookupRows> lookups;
    out.resize(tables_.size());
    for (size_t t = 0; t < tables_.size(); ++t) {
      out[t].resize(inverse_[t].size() * tables_[t].width);
      lookups.push_back({splits_[t].send, splits_[t].recv, tables_[t].width * 4, rows[t].data(),
                         static_cast<int64_t>(served_[t].size()), inverse_[t].data(),
                         static_cast<int64_t>(inverse_[t].size()), out[t].data()});
    }
    if (Status status = CheckRows(c_.size(), lookups); !status.ok()) return c_.Decline("combine", status);
    return Combine(c_, "combine", lookups);
  }

  // gradients: of the ids, [N, D]. out: of `served`, [M, D].
  Status SendGradients(const OfTables<float>& gradients, OfTables<float>& out) {
    std::vector<LookupGradient> lookups;
    out.resize(tables_.size());
    for (size_t t = 0; t < tables_.size(); ++t) {
      out[t].resize(served_[t].size() * tables_[t].width);
      lookups.push_back({splits_[t].send, splits_[t].recv, DType::kFloat32, tables_[t].width, gradients[t].data(),
                         inverse_[t].data(), static_cast<int64_t>(inverse_[t].size()), out[t].data()});
    }
    const Result<GradientSums> sums = SumGradients(c_, lookups);
    if (!sums.ok()) return c_.Decline("gradient", sums.status());
    return ExchangeGradients(c_, "gradient", lookups, *sums);
  }

 private:
  Communicator& c_;
  const std::vector<Table>& tables_;
  OfTables<int32_t> inverse_;
  std::vector<Splits> splits_;
  OfTables<int64_t> served_;
};

// A rank that trains its shards.
class Worker {
 public:
  Worker(Communicator& communicator, const std::vector<Table>& tables, bool two_stages)
      : c_(communicator), tables_(tables), two_stages_(two_stages), to_relays_(c_, tables), to_owners_(c_, tables) {
    for (int t = 0; t < static_cast<int>(tables.size()); ++t) {
      const int64_t width = tables[t].width, rows = tables[t].placement.LocalRows(c_.rank(), c_.size());
      Rows shard{width, {}, std::vector<float>(rows * width, kInitialSlot)};
      for (int64_t i = 0; i < rows * width; ++i) shard.weights.push_back(InitialWeight(t, Id(t, i / width), i % width));
      shards_.push_back(std::move(shard));
    }
  }

  // Looks the step's ids up and compares the rows with the oracle's, then sends gradients and updates. Returns "" or
  // the error.
  std::string Step(int step, const Oracle& oracle) {
    OfTables<int64_t> ids;
    OfTables<float> gradients, rows, looked_up, to_owner;
    for (int t = 0; t < static_cast<int>(tables_.size()); ++t) {
      ids.push_back(Ids(step, c_.rank(), t, tables_[t]));
      std::vector<float>& own = gradients.emplace_back();
      for (int64_t i = 0; i < static_cast<int64_t>(ids[t].size()) * tables_[t].width; ++i)
        own.push_back(Gradient(step, c_.rank(), t, i / tables_[t].width, i % tables_[t].width));
    }
    if (two_stages_) {
      if (Status status = to_relays_.Route(ids, c_.relay_ranks()); !status.ok()) return status.ToString();
    }
    if (Status status = to_owners_.Route(two_stages_ ? to_relays_.served() : ids, {}); !status.ok())
      return status.ToString();
    for (size_t t = 0; t < tables_.size(); ++t) {
      std::vector<float>& own = rows.emplace_back();
      for (const int64_t row : to_owners_.served()[t]) {
        const auto begin = shards_[t].weights.begin() + row * tables_[t].width;
        own.insert(own.end(), begin, begin + tables_[t].width);
      }
    }
    if (Status status = to_owners_.CombineRows(rows, looked_up); !status.ok()) return status.ToString();
    if (two_stages_) {
      const OfTables<float> of_host = std::exchange(looked_up, {});
      if (Status status = to_relays_.CombineRows(of_host, looked_up); !status.ok()) return status.ToString();
      if (Status status = to_relays_.SendGradients(gradients, to_owner); !status.ok()) return status.ToString();
      gradients = std::move(to_owner);
    }
    if (Status status = to_owners_.SendGradients(gradients, to_owner); !status.ok()) return status.ToString();
    for (size_t t = 0; t < tables_.size(); ++t) {
      const std::vector<int64_t>& served = to_owners_.served()[t];
      const std::vector<uint32_t> numbers(served.begin(), served.end());
      shards_[t].Update(numbers, to_owner[t].data());
    }
    return CompareLookups(step, ids, looked_up, oracle);
  }

  // Compares the rows of the shards, and their slots.
  std::string CompareShards(const Oracle& oracle) const {
    for (int t = 0; t < static_cast<int>(tables_.size()); ++t) {
      for (int64_t i = 0; i < static_cast<int64_t>(shards_[t].weights.size()); ++i) {
        const int64_t at = Id(t, i / tables_[t].width) * tables_[t].width + i % tables_[t].width;
        const Rows& whole = oracle.whole(t);
        if (Same(shards_[t].weights[i], whole.weights[at]) && Same(shards_[t].slots[i], whole.slots[at])) continue;
        return StrCat("rank ", c_.rank(), ": table ", tables_[t].name, ", element ", at, " is ", shards_[t].weights[i],
                      " with slot ", shards_[t].slots[i], ", wanted ", whole.weights[at], " with ", whole.slots[at]);
      }
    }
    return "";
  }

  // The stages of a step.
  std::vector<const Stage*> stages() const {
    return two_stages_ ? std::vector<const Stage*>{&to_relays_, &to_owners_} : std::vector<const Stage*>{&to_owners_};
  }

 private:
  static bool Same(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }
  int64_t Id(int t, int64_t local_row) const { return tables_[t].placement.GlobalRow(local_row, c_.rank(), c_.size()); }

  // The oracle has not made this step yet.
  std::string CompareLookups(int step, const OfTables<int64_t>& ids, const OfTables<float>& got,
                             const Oracle& oracle) const {
    for (int t = 0; t < static_cast<int>(tables_.size()); ++t) {
      const int64_t width = tables_[t].width;
      for (int64_t i = 0; i < static_cast<int64_t>(got[t].size()); ++i) {
        const float wanted = oracle.whole(t).weights[ids[t][i / width] * width + i % width];
        if (Same(got[t][i], wanted)) continue;
        return StrCat("rank ", c_.rank(), ", step ", step, ": table ", tables_[t].name, ", id ", ids[t][i / width],
                      ", column ", i % width, " is ", got[t][i], ", wanted ", wanted);
      }
    }
    return "";
  }

  Communicator& c_;
  const std::vector<Table>& tables_;
  const bool two_stages_;
  Stage to_relays_, to_owners_;
  std::vector<Rows> shards_;
};

// Returns the relay rank of each rank for each owner, [R, R]: the owner itself on its host, else the rank of the own
// host with the owner's place, modulo the number of rails.
std::vector<std::vector<int>> Relays(const JobShape& shape) {
  const std::vector<std::vector<int>> hosts = shape.Hosts();
  size_t rails = hosts[0].size();
  for (const std::vector<int>& ranks : hosts) rails = std::min(rails, ranks.size());
  std::vector<std::vector<int>> relays(shape.size, std::vector<int>(shape.size));
  for (const std::vector<int>& own : hosts) {
    for (const std::vector<int>& others : hosts) {
      for (size_t l = 0; l < others.size(); ++l) {
        for (const int rank : own) relays[rank][others[l]] = &own == &others ? others[l] : own[l % rails];
      }
    }
  }
  return relays;
}

class HostsTest : public ::testing::TestWithParam<JobShape> {};

TEST_P(HostsTest, LookupsAndUpdatesEqualThoseOfOneRank) {
  const JobShape& shape = GetParam();
  for (const bool two_stages : {false, true}) {
    SCOPED_TRACE(two_stages ? "two stages" : "one stage");
    ExpectAllWell(shape, [&](Communicator& c) -> std::string {
      const std::vector<Table> tables = Tables(3, c.size());
      Oracle oracle(tables, c.size(), two_stages ? Relays(shape) : std::vector<std::vector<int>>());
      Worker worker(c, tables, two_stages);
      for (int step = 0; step < 4; ++step) {
        if (const std::string error = worker.Step(step, oracle); !error.empty()) return error;
        oracle.Step(step);
        if (const std::string error = worker.CompareShards(oracle); !error.empty()) return error;
      }
      return "";
    });
  }
}

// Differences of a rank's counters over a step.
struct Counted {
  explicit Counted(const LaneCounters& of)
      : calls(of.collectives()),
        sent_bytes(of.sent_bytes()),
        received_bytes(of.received_bytes()),
        sent_messages(of.sent_messages()) {}
  int64_t calls, sent_bytes, received_bytes, sent_messages;
};

// lookup.h and docs/algorithms.md have the formulas. Only their bytes grow with the number of tables.
TEST_P(HostsTest, ExchangesAndMessagesDoNotGrowWithTheNumberOfTables) {
  const JobShape& shape = GetParam();
  const int64_t hosts = static_cast<int64_t>(shape.Hosts().size());
  ExpectAllWell(shape, [&](Communicator& c) -> std::string {
    std::string errors;
    for (const int count : {1, 2, 26}) {
      for (const bool two_stages : {false, true}) {
        const std::vector<Table> tables = Tables(count, c.size());
        const Oracle oracle(tables, c.size(), {});
        Worker worker(c, tables, two_stages);
        const Counted before(*c.counters());
        if (const std::string error = worker.Step(0, oracle); !error.empty()) return error;
        const Counted after(*c.counters());
        const int64_t calls = two_stages ? 6 : 3;
        // A leader tells the other leaders the sizes of each call. The data of three calls crosses over all rails.
        const bool leads = c.rank() == 0 || shape.hosts[c.rank() - 1] != shape.hosts[c.rank()];
        const int64_t messages = (hosts - 1) * ((leads ? calls : 0) + 3);
        const auto expect = [&](const char* what, int64_t got, int64_t wanted) {
          if (got == wanted) return;
          errors += StrCat("rank ", c.rank(), ", ", count, " tables, ", calls, " exchanges: ", got, " ", what,
                           ", wanted ", wanted, "\n");
        };
        expect("exchanges", after.calls - before.calls, calls);
        expect("messages", after.sent_messages - before.sent_messages, messages);
        int64_t sent = 0, received = 0;
        for (const Stage* const stage : worker.stages()) {
          for (int r = 0; r < c.size(); ++r) {
            if (r == c.rank()) continue;
            const auto any = [&](const auto& splits_of) {
              return std::ranges::any_of(stage->splits(),
                                         [&](const Splits& splits) { return splits_of(splits)[r] > 0; });
            };
            const int64_t numbers = count > 1 ? 8 * count : 0;
            if (any([](const Splits& splits) { return splits.send; })) sent += numbers;
            if (any([](const Splits& splits) { return splits.recv; })) received += numbers;
            for (int t = 0; t < count; ++t) {
              const int64_t asked = stage->splits()[t].send[r], served = stage->splits()[t].recv[r];
              const int64_t row_bytes = 4 * tables[t].width;
              sent += 8 * asked + row_bytes * (served + asked);
              received += 8 * served + row_bytes * (asked + served);
            }
          }
        }
        expect("bytes sent", after.sent_bytes - before.sent_bytes, sent);
        expect("bytes received", after.received_bytes - before.received_bytes, received);
      }
    }
    return errors;
  });
}

INSTANTIATE_TEST_SUITE_P(Jobs, HostsTest, ::testing::Values(OnHosts(2, 2), OnHosts(4, 2)), JobShapeName);
// 64 ranks on 16 hosts. `make test-hosts` runs it on emulated hosts (tests/hosts/conformance_test.py).
INSTANTIATE_TEST_SUITE_P(AtScale, HostsTest, ::testing::Values(OnHosts(16, 4)), JobShapeName);

}  // namespace
}  // namespace lockstep
