#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/embedding/dynamic_table.h"
#include "core/embedding/optimizer/adagrad.h"
#include "core/testing/parallel.h"

// Measures how fast a dynamic table is in one process.
//
// Method: a call has 65,536 keys, drawn uniformly or by a zipf law (1.05) from the keys of a full table, and each
// sample has another batch. Keys are scattered over all int64. Two threads divide a call. It prints the median and the
// best of the samples in million keys per second (distinct rows for updates without duplicates), and the target if
// there is one. Lookups write to one buffer that is used again, as a framework's allocator would return it.
//
//   lookup         Lookup: keys to rows, no trace left
//   resolve        Resolve of existing keys, with frequency and version recorded, rows read
//   update, keys   Update with Adagrad, as many gradients as keys: duplicates are found and summed
//   update, rows   the same rule on distinct rows only
//   fill           Resolve of new keys, 65,536 per call, until the table is full
//
//   lockstep_embedding_benchmark [seconds for a line]      0.3 without an argument

namespace lockstep {
namespace {

constexpr int64_t kKeys = 65536;
constexpr int kBatches = 16;
constexpr int kThreads = 2;

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Returns the memory of this process in bytes.
double ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  double total = 0, resident = 0;
  file >> total >> resident;
  return resident * 4096;
}

void Need(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

int64_t KeyOf(int64_t number) { return static_cast<int64_t>(MixBits(number + 12345)); }

std::vector<std::vector<int64_t>> Batches(int64_t rows, bool zipf) {
  std::mt19937_64 random(3);
  std::vector<double> shares;
  double sum = 0;
  for (int64_t i = 0; zipf && i < rows; ++i) shares.push_back(sum += std::pow(static_cast<double>(i + 1), -1.05));
  std::uniform_real_distribution<double> uniform(0, sum);
  std::vector<std::vector<int64_t>> batches(kBatches, std::vector<int64_t>(kKeys));
  for (auto& batch : batches) {
    for (int64_t& key : batch) {
      const int64_t number = zipf ? std::lower_bound(shares.begin(), shares.end(), uniform(random)) - shares.begin()
                                  : static_cast<int64_t>(random() % rows);
      key = KeyOf(static_cast<int64_t>(MixBits(number) % rows));
    }
  }
  return batches;
}

struct Times {
  double median, best;  // million per second
};

// Samples until `seconds` have passed; each sample handles `items(i)` items.
Times Measure(double seconds, const std::function<double(int i)>& sample, const std::function<double(int i)>& items) {
  std::vector<double> rates;
  for (int i = 0; i < 2; ++i) sample(i);
  const double end = Now() + seconds;
  for (int i = 0; Now() < end || i < 9; ++i) rates.push_back(items(i % kBatches) / sample(i % kBatches) / 1e6);
  std::sort(rates.begin(), rates.end());
  return {rates[rates.size() / 2], rates.back()};
}

void Print(const std::string& name, const Times& times, double target) {
  std::printf("%-34s %9.1f %9.1f", name.c_str(), times.median, times.best);
  if (target > 0) std::printf("   >= %.0f  %s", target, times.best >= target ? "reached" : "MISSED");
  std::printf("\n");
  std::fflush(stdout);
}

class Run {
 public:
  Run(int64_t rows, int64_t dim, double seconds) : rows_(rows), dim_(dim), seconds_(seconds), parallel_(pool_.Get()) {
    DynamicTableOptions options;
    options.name = "benchmark";
    options.dim = dim;
    options.initial = {InitialOptions::Kind::kUniform, -0.05f, 0.05f, 1};
    options.record_frequency = options.record_version = true;
    Result<std::unique_ptr<DynamicTable>> table = DynamicTable::Create(options);
    Need(table.status());
    table_ = *std::move(table);
    slot_ = *table_->AddSlot("accumulator", 0.1f);
    buffer_.resize(kKeys * dim);
    const double begin = Now();
    std::vector<int64_t> keys(kKeys);
    for (int64_t first = 0; first < rows; first += kKeys) {
      keys.resize(std::min(kKeys, rows - first));
      for (size_t i = 0; i < keys.size(); ++i) keys[i] = KeyOf(first + static_cast<int64_t>(i));
      Need(table_->Resolve(keys, {}, nullptr, parallel_).status());
    }
    const double rate = static_cast<double>(rows) / (Now() - begin) / 1e6;
    Print(Label("fill", ""), {rate, rate}, 0);
  }

  void All() {
    for (const bool zipf : {false, true}) {
      const std::string law = zipf ? "zipf" : "uniform";
      batches_ = Batches(rows_, zipf);
      const auto all = [](int) { return static_cast<double>(kKeys); };
      const bool goal = rows_ == 1000000 && dim_ == 16;
      Print(Label("lookup", law),
            Measure(
                seconds_, [&](int i) { return Lookup(i); }, all),
            goal ? (zipf ? 100 : 40) : 0);
      Print(Label("resolve", law),
            Measure(
                seconds_, [&](int i) { return Resolve(i); }, all),
            0);
      Print(Label("update, keys", law),
            Measure(
                seconds_, [&](int i) { return Update(i); }, all),
            0);
      Print(Label("update, rows", law),
            Measure(
                seconds_, [&](int i) { return UpdateDistinct(i); },
                [&](int i) { return static_cast<double>(Distinct(i).size()); }),
            goal ? 40 : 0);
    }
  }

 private:
  std::string Label(const std::string& what, const std::string& law) const {
    return std::to_string(rows_ / 1000000) + "M x " + std::to_string(dim_) + "  " + what +
           (law.empty() ? "" : ", " + law);
  }

  double Lookup(int i) {
    const double begin = Now();
    table_->Lookup(batches_[i], buffer_.data(), parallel_);
    return Now() - begin;
  }

  double Resolve(int i) {
    const double begin = Now();
    const Result<ResolvedKeys> batch = table_->Resolve(batches_[i], {++step_, 0}, buffer_.data(), parallel_);
    const double seconds = Now() - begin;
    Need(batch.status());
    return seconds;
  }

  double Update(int i) {
    const Result<ResolvedKeys> batch = table_->Resolve(batches_[i], {++step_, 0}, buffer_.data(), parallel_);
    Need(batch.status());
    const UpdateRule rule = *AdagradOptions{}.Rule(DType::kFloat32);
    const double begin = Now();
    Need(table_->Update(*batch, buffer_.data(), rule, {{slot_}}, step_, parallel_));
    return Now() - begin;
  }

  // Returns the rows of a batch, each once.
  std::vector<uint32_t> Distinct(int i) {
    const Result<ResolvedKeys> batch = table_->Resolve(batches_[i], {step_, 0}, nullptr, parallel_);
    std::vector<uint32_t> rows(batch->rows().begin(), batch->rows().end());
    std::sort(rows.begin(), rows.end());
    rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
    std::shuffle(rows.begin(), rows.end(), std::mt19937_64(i));
    return rows;
  }

  // Uses memory of the same kind, as the table has no call for it.
  double UpdateDistinct(int i) {
    if (slab_ == nullptr) {
      slab_ = std::make_unique<Slab>();
      for (int column = 0; column < 2; ++column) Need(slab_->AddColumn(dim_ * 4).status());
      std::vector<uint32_t> all(rows_ + kKeys);
      Need(slab_->Take(all));
      for (const uint32_t row : all) std::fill_n(reinterpret_cast<float*>(slab_->column(1)[row]), dim_, 0.1f);
    }
    const std::vector<uint32_t> rows = Distinct(i);
    const UpdateTarget target{slab_->column(0), {slab_->column(1)}, dim_};
    const UpdateRule rule = *AdagradOptions{}.Rule(DType::kFloat32);
    const double begin = Now();
    ApplyDistinctUpdate(target, rule, rows, buffer_.data(), parallel_);
    return Now() - begin;
  }

  const int64_t rows_, dim_;
  const double seconds_;
  testing::Pool pool_{kThreads};
  const ParallelFor parallel_;
  std::unique_ptr<DynamicTable> table_;
  std::unique_ptr<Slab> slab_;
  int slot_ = 0;
  int64_t step_ = 0;
  std::vector<float> buffer_;
  std::vector<std::vector<int64_t>> batches_;
};

// Measures the memory of a table of 10 million keys with Adagrad's slot, compared with the bytes of keys, rows and
// slots.
void FillTenMillion() {
  constexpr int64_t kRows = 10000000, kDim = 16;
  testing::Pool pool(kThreads);
  const ParallelFor parallel = pool.Get();
  const double before = ResidentBytes();
  DynamicTableOptions options;
  options.name = "benchmark";
  options.dim = kDim;
  options.initial = {InitialOptions::Kind::kTruncatedNormal, 0, 0.05f, 1};
  Result<std::unique_ptr<DynamicTable>> table = DynamicTable::Create(options);
  Need(table.status());
  Need((*table)->AddSlot("accumulator", 0.1f).status());
  std::vector<int64_t> keys(kKeys);
  double peak = 0;
  const double begin = Now();
  for (int64_t first = 0; first < kRows; first += kKeys) {
    keys.resize(std::min(kKeys, kRows - first));
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = KeyOf(first + static_cast<int64_t>(i));
    Need((*table)->Resolve(keys, {}, nullptr, parallel).status());
    peak = std::max(peak, ResidentBytes() - before);
  }
  const double seconds = Now() - begin;
  constexpr double kPlain = kRows * (8.0 + 2 * kDim * 4);
  std::printf(
      "10M x 16 with Adagrad: filled at %.1f million keys/s; %.0f MB, %.3f of keys, rows and slots (<= 1.35 %s); "
      "at most %.3f while it grew\n",
      kRows / seconds / 1e6, (ResidentBytes() - before) / 1e6, (ResidentBytes() - before) / kPlain,
      (ResidentBytes() - before) / kPlain <= 1.35 ? "reached" : "MISSED", peak / kPlain);
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 0.3;
  std::printf("%d threads, %lld keys a call, million a second\n%-34s %9s %9s\n", lockstep::kThreads,
              static_cast<long long>(lockstep::kKeys), "", "median", "best");
  for (const int64_t rows : {1000000, 5000000}) {
    for (const int64_t dim : {16, 64}) lockstep::Run(rows, dim, seconds).All();
  }
  lockstep::FillTenMillion();
  return 0;
}
