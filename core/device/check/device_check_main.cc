#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/strings.h"
#include "core/device/check/checks.h"
#include "core/device/check/exchanges.h"
#include "core/device/check/measures.h"
#include "core/device/check/process.h"
#include "core/device/check/report.h"
#include "core/device/load.h"

// Checks a device's library on this machine's GPU against the CPU, and measures its kernels (tools/device_check.sh).
// ```
//   device_check LIBRARY [--small] [--only checks|collectives|measures] [--nccl PATH] [--seconds S] [--json FILE]
//                [--one-process]
// ```
// --nccl: the path of libnccl.so.2, or a folder in which it may lie; without it NCCL is looked for in the system's
// folders. --seconds: the most time that the whole takes (140), but for the ends of killed processes; each job of the
// collectives takes at most a seventh of it. --one-process: the checks or the measures run in this process, for tools
// that watch a process. They are then without a limit.
//
// Each part runs in processes of its own. Prints a table, and writes the same as JSON, also after parts that crash or
// hang: they are failures. Exits with 1 after a failure, with 2 for wrong arguments or a file that cannot be written,
// and with 3 on a machine without a device.
namespace lockstep::device {
namespace {

constexpr char kUsage[] =
    "wanted: device_check LIBRARY [--small] [--only checks|collectives|measures] [--nccl PATH] [--seconds S] "
    "[--json FILE] [--one-process]";
// The share of the time that a job of the collectives may take, the search for the device, and the measures.
constexpr double kShareOfPart = 1.0 / 7;

struct Options {
  std::string library;
  bool is_small = false;  // sizes for an emulated device
  bool checks = true, collectives = true, measures = true;
  bool one_process = false;
  double seconds = 140;
  NcclPlace nccl;
  std::string json;
};

bool ParseOnly(std::string_view only, Options* options) {
  options->checks = only == "checks";
  options->collectives = only == "collectives";
  options->measures = only == "measures";
  return options->checks || options->collectives || options->measures;
}

NcclPlace PlaceOf(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error) ? NcclPlace{.file = {}, .folder = path, .system = false}
                                                    : NcclPlace{.file = path, .folder = {}};
}

// Returns false for unknown words.
bool Parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    const bool has_value = i + 1 < argc;
    if (word == "--small") {
      options->is_small = true;
    } else if (word == "--one-process") {
      options->one_process = true;
    } else if (word == "--only" && has_value) {
      if (!ParseOnly(argv[++i], options)) return false;
    } else if (word == "--nccl" && has_value) {
      options->nccl = PlaceOf(argv[++i]);
    } else if (word == "--seconds" && has_value) {
      options->seconds = std::atof(argv[++i]);
    } else if (word == "--json" && has_value) {
      options->json = argv[++i];
    } else if (options->library.empty() && !word.starts_with("-")) {
      options->library = word;
    } else {
      return false;
    }
  }
  return !options->library.empty() && options->seconds > 0 && !(options->one_process && options->collectives);
}

// Reports the device: the members of Results.
void ReportDevice(const Library& library, const Report& report) {
  int count = 0, driver = 0;
  const char* why = nullptr;
  const Status counted = ToStatus(library, library.device_count(&count, &why), "device_count");
  if (!counted.ok()) return report("failure", counted.ToString());
  if (count == 0) return report("no_device", why);
  Session session(library);
  Properties properties = {};
  session.Note(library.driver_version(&driver), "driver_version");
  session.Note(library.properties(0, &properties), "properties");
  if (!session.ok()) return report("failure", session.status().ToString());
  char text[512];
  std::snprintf(text, sizeof(text), "%s, compute capability %d.%d, %d multiprocessors, %.1f GiB; %s, driver %d",
                properties.name, properties.major, properties.minor, properties.multiprocessors,
                static_cast<double>(properties.memory_bytes) / (1 << 30), library.runtime, driver);
  report("summary", text);
  report("device", properties.name);
  report("runtime", library.runtime);
  report("driver", StrCat(driver));
}

// Reports "check" after each check, and "failed_check" for one that failed.
void RunChecks(const Library& library, bool is_small, const Report& report) {
  std::vector<int64_t> sizes = {0, 1, 3, 17, 255, 1000};
  if (!is_small) sizes.insert(sizes.end(), {4095, 4097, 100'003, 1'000'000});
  const uint64_t num_seeds = is_small ? 1 : 2;
  Session session(library);
  for (const Check& check : AllChecks(sizes)) {
    report(kNext, check.name);
    Status status;
    for (uint64_t seed = 1; seed <= num_seeds && status.ok(); ++seed) status = check.run(session, seed);
    if (!status.ok()) report("failed_check", StrCat(check.name, ": ", status.ToString()));
    report("check", "");
    if (!session.ok()) return;  // after an error of the device all later checks fail as well
  }
}

// Reports "measure": bytes, microseconds and name.
void RunMeasures(const Library& library, bool is_small, const Report& report) {
  Session session(library);
  const auto measures = MeasureKernels(session, is_small ? 1 << 20 : 256 << 20);
  if (!measures.ok()) return report("failure", measures.status().ToString());
  for (const Measure& measure : *measures) {
    report("measure", StrCat(measure.bytes, " ", measure.us, " ", measure.name));
  }
}

Measure ToMeasure(const std::string& text) {
  char* end = nullptr;
  Measure measure = {};
  measure.bytes = std::strtoll(text.c_str(), &end, 10);
  measure.us = std::strtod(end, &end);
  measure.name = end + 1;
  return measure;
}

// Returns false if the file cannot be written.
bool Write(const std::string& path, const std::string& text) {
  std::FILE* const file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return false;
  const bool is_written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  return std::fclose(file) == 0 && is_written;
}

// Runs the parts one after another, and keeps the JSON up to date.
class Run {
 public:
  explicit Run(const Options& options) : options_(options), deadline_(Deadline::After(options.seconds)) {}

  // Returns the exit code.
  int All() {
    const double part_s = kShareOfPart * options_.seconds;
    OnDevice("device", part_s, ReportDevice);
    if (!results_.device.empty()) {
      if (options_.collectives) Exchanges(part_s);
      const bool is_small = options_.is_small;
      if (options_.checks) {
        OnDevice("checks", deadline_.Left() - (options_.measures ? part_s : 0),
                 [=](const Library& library, const Report& report) { RunChecks(library, is_small, report); });
      }
      if (options_.measures) {
        OnDevice("measures", deadline_.Left(),
                 [=](const Library& library, const Report& report) { RunMeasures(library, is_small, report); });
      }
    }
    Save("");
    PrintTable(results_);
    if (!results_.no_device.empty()) std::fprintf(stderr, "device_check: no device: %s\n", results_.no_device.c_str());
    if (is_written_) return results_.exit_code();
    std::fprintf(stderr, "device_check: cannot write %s\n", options_.json.c_str());
    return 2;
  }

 private:
  void Exchanges(double limit_s) {
    for (const ExchangePlan& plan : AllExchanges()) {
      Save(plan.name());
      results_.exchanges.push_back(CheckExchange(plan, {.library = options_.library}, options_.nccl, limit_s));
      const Exchange& exchange = results_.exchanges.back();
      if (!exchange.failure.empty()) results_.failures.push_back(StrCat(exchange.name, ": ", exchange.failure));
    }
  }

  // Runs a part that uses the device from the host's side.
  template <typename Work>
  void OnDevice(const std::string& name, double limit_s, const Work& work) {
    Save(name);
    const Part part = [&](const Report& report) {
      SetLibraryPlace({.library = options_.library});
      const auto library = LoadLibrary();
      if (!library.ok()) return report("failure", library.status().ToString());
      work(**library, report);
    };
    if (options_.one_process) {
      part([&](std::string_view kind, std::string_view text) { Take(name, {std::string(kind), std::string(text)}); });
    } else {
      for (const Line& line : Process(part).Wait(Deadline::After(limit_s))) Take(name, line);
    }
  }

  void Take(const std::string& part, const Line& line) {
    if (line.kind == "failure") results_.failures.push_back(StrCat(part, ": ", line.text));
    if (line.kind == "failed_check") {
      results_.failures.push_back(line.text);
      ++results_.num_failed_checks;
    }
    if (line.kind == "check") ++results_.num_checks;
    if (line.kind == "measure") results_.measures.push_back(ToMeasure(line.text));
    if (line.kind == "summary") results_.summary = line.text;
    if (line.kind == "device") results_.device = line.text;
    if (line.kind == "runtime") results_.runtime = line.text;
    if (line.kind == "driver") results_.driver = line.text;
    if (line.kind == "no_device") results_.no_device = line.text;
  }

  // Writes the JSON. running: the part that comes next.
  void Save(const std::string& running) {
    results_.running = running;
    if (!options_.json.empty()) is_written_ = Write(options_.json, ToJson(results_));
  }

  const Options& options_;
  const Deadline deadline_;
  Results results_;
  bool is_written_ = true;
};

}  // namespace
}  // namespace lockstep::device

int main(int argc, char** argv) {
  lockstep::device::Options options;
  if (!lockstep::device::Parse(argc, argv, &options)) {
    std::fprintf(stderr, "device_check: %s\n", lockstep::device::kUsage);
    return 2;
  }
  return lockstep::device::Run(options).All();
}
