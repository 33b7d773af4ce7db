#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json_text.h"
#include "core/base/strings.h"
#include "core/device/check/checks.h"
#include "core/device/check/exchanges.h"
#include "core/device/check/measures.h"
#include "core/device/load.h"

// Checks a device's library on this machine's GPU against the CPU, and measures its kernels (tools/device_check.sh).
// ```
//   device_check LIBRARY [--small] [--only checks|collectives|measures] [--nccl FILE] [--json FILE]
// ```
// --nccl: the path of libnccl.so.2; without it NCCL is looked for in the system's folders.
//
// Prints a table, and writes the same as JSON. Exits with 1 if a check failed, and with 3 on a machine without a
// device.
namespace lockstep::device {
namespace {

struct Options {
  std::string library;
  bool is_small = false;  // sizes for an emulated device
  bool checks = true, collectives = true, measures = true;
  std::string nccl;
  std::string json;
};

struct Results {
  Properties properties = {};
  std::string runtime;
  int driver = 0;
  int num_checks = 0;
  std::vector<std::string> failures;
  std::vector<Exchange> exchanges;
  std::vector<Measure> measures;
};

// Returns false for unknown words.
bool Parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--small") {
      options->is_small = true;
    } else if (word == "--only" && i + 1 < argc) {
      const std::string_view only = argv[++i];
      options->checks = only == "checks";
      options->collectives = only == "collectives";
      options->measures = only == "measures";
      if (options->checks + options->collectives + options->measures != 1) return false;
    } else if (word == "--nccl" && i + 1 < argc) {
      options->nccl = argv[++i];
    } else if (word == "--json" && i + 1 < argc) {
      options->json = argv[++i];
    } else if (options->library.empty() && !word.starts_with("-")) {
      options->library = word;
    } else {
      return false;
    }
  }
  return !options->library.empty();
}

void RunChecks(Session& session, const Options& options, Results* results) {
  std::vector<int64_t> sizes = {0, 1, 3, 17, 255, 1000};
  if (!options.is_small) sizes.insert(sizes.end(), {4095, 4097, 100'003, 1'000'000});
  const uint64_t num_seeds = options.is_small ? 1 : 2;
  for (const Check& check : AllChecks(sizes)) {
    ++results->num_checks;
    Status status;
    for (uint64_t seed = 1; seed <= num_seeds && status.ok(); ++seed) status = check.run(session, seed);
    if (!status.ok()) results->failures.push_back(StrCat(check.name, ": ", status.ToString()));
    if (!session.ok()) return;  // after an error of the device all later checks fail as well
  }
}

void RunExchanges(const Options& options, Results* results) {
  results->exchanges = CheckExchanges({.library = options.library}, {.file = options.nccl, .folder = {}});
  for (const Exchange& exchange : results->exchanges) {
    if (!exchange.failure.empty()) results->failures.push_back(StrCat(exchange.name, ": ", exchange.failure));
  }
}

// The share of the bandwidth of the plain copy, which is the first measure.
double ShareOfCopy(const Results& results, const Measure& measure) {
  const double copy = results.measures.front().bytes_per_us();
  return copy > 0 ? measure.bytes_per_us() / copy : 0;
}

void PrintTable(const Results& results) {
  std::printf("%s, compute capability %d.%d, %d multiprocessors, %.1f GiB; %s, driver %d\n", results.properties.name,
              results.properties.major, results.properties.minor, results.properties.multiprocessors,
              static_cast<double>(results.properties.memory_bytes) / (1 << 30), results.runtime.c_str(),
              results.driver);
  for (const std::string& failure : results.failures) std::printf("FAILED %s\n", failure.c_str());
  if (results.num_checks > 0) {
    std::printf("%d checks of kernels against the CPU: %zu failed\n", results.num_checks, results.failures.size());
  }
  for (const Exchange& exchange : results.exchanges) {
    const bool is_refused = !exchange.refusal.empty();
    std::printf("collectives, %s: %s%s\n", exchange.name.c_str(), is_refused ? "refused: " : "",
                is_refused                 ? exchange.refusal.c_str()
                : exchange.failure.empty() ? "equal to the CPU's"
                                           : "FAILED");
  }
  if (results.measures.empty()) return;
  std::printf("%-36s %10s %10s %10s %8s\n", "kernel", "MB", "us", "GB/s", "of copy");
  for (const Measure& measure : results.measures) {
    std::printf("%-36s %10.1f %10.1f %10.1f %7.0f%%\n", measure.name.c_str(), static_cast<double>(measure.bytes) / 1e6,
                measure.us, measure.bytes_per_us() / 1e3, 100 * ShareOfCopy(results, measure));
  }
}

std::string ToJson(const Results& results) {
  std::string text =
      StrCat("{\n  \"device\": ", JsonText(results.properties.name), ",\n  \"runtime\": ", JsonText(results.runtime),
             ",\n  \"driver\": ", results.driver, ",\n  \"checks\": ", results.num_checks, ",\n  \"failures\": [");
  for (size_t i = 0; i < results.failures.size(); ++i) {
    text += StrCat(i == 0 ? "" : ", ", JsonText(results.failures[i]));
  }
  text += "],\n  \"collectives\": [";
  for (size_t i = 0; i < results.exchanges.size(); ++i) {
    const Exchange& exchange = results.exchanges[i];
    text += StrCat(i == 0 ? "" : ",", "\n    {\"of\": ", JsonText(exchange.name),
                   ", \"failure\": ", JsonText(exchange.failure), ", \"refusal\": ", JsonText(exchange.refusal), "}");
  }
  text += "],\n  \"measures\": [";
  for (size_t i = 0; i < results.measures.size(); ++i) {
    const Measure& measure = results.measures[i];
    text += StrCat(i == 0 ? "" : ",", "\n    {\"kernel\": ", JsonText(measure.name), ", \"bytes\": ", measure.bytes,
                   ", \"us\": ", measure.us, ", \"share_of_copy\": ", ShareOfCopy(results, measure), "}");
  }
  return text + "\n  ]\n}\n";
}

// Returns false if the file cannot be written.
bool Write(const std::string& path, const std::string& text) {
  std::FILE* const file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return false;
  const bool is_written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  return std::fclose(file) == 0 && is_written;
}

int Fail(const std::string& message, int code) {
  std::fprintf(stderr, "device_check: %s\n", message.c_str());
  return code;
}

int Run(const Options& options) {
  Results results;
  if (options.collectives) RunExchanges(options, &results);  // first: it forks
  SetLibraryPlace({.library = options.library});
  const auto loaded = LoadLibrary();
  if (!loaded.ok()) return Fail(loaded.status().ToString(), 2);
  const Library& library = **loaded;
  int count = 0;
  const char* why = nullptr;
  const Error counted = library.device_count(&count, &why);
  if (counted != kSuccess || count == 0) return Fail(StrCat("no device: ", why), 3);

  results.runtime = library.runtime;
  Session session(library);
  session.Note(library.driver_version(&results.driver), "driver_version");
  session.Note(library.properties(0, &results.properties), "properties");
  if (options.checks) RunChecks(session, options, &results);
  if (options.measures && session.ok()) {
    auto measures = MeasureKernels(session, options.is_small ? 1 << 20 : 256 << 20);
    if (measures.ok()) results.measures = *std::move(measures);
  }
  if (!session.ok() && results.failures.empty()) results.failures.push_back(session.status().ToString());
  PrintTable(results);
  if (!options.json.empty() && !Write(options.json, ToJson(results))) return Fail("cannot write " + options.json, 2);
  return results.failures.empty() ? 0 : 1;
}

}  // namespace
}  // namespace lockstep::device

int main(int argc, char** argv) {
  lockstep::device::Options options;
  if (!lockstep::device::Parse(argc, argv, &options)) {
    return lockstep::device::Fail(
        "wanted: device_check LIBRARY [--small] [--only checks|collectives|measures] [--nccl FILE] [--json FILE]", 2);
  }
  return lockstep::device::Run(options);
}
