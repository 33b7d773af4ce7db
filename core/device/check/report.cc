#include "core/device/check/report.h"

#include <cstdio>

#include "core/base/json_text.h"
#include "core/base/strings.h"

namespace lockstep::device {
namespace {

// The share of the bandwidth of the plain copy, which is the first measure.
double ShareOfCopy(const Results& results, const Measure& measure) {
  const double copy = results.measures.front().bytes_per_us();
  return copy > 0 ? measure.bytes_per_us() / copy : 0;
}

// Returns "22809 (PATH)", "not found: PLACES", or "" if no collective of NCCL was tried.
std::string NcclText(const Results& results) {
  for (const Exchange& exchange : results.exchanges) {
    if (!exchange.missing.empty()) return "not found: " + exchange.missing;
    if (!exchange.nccl.empty()) return exchange.nccl;
  }
  return "";
}

std::string Outcome(const Exchange& exchange) {
  if (!exchange.failure.empty()) return "FAILED";
  if (!exchange.refusal.empty()) return "refused: " + exchange.refusal;
  return exchange.missing.empty() ? "equal to the CPU's" : "not run";
}

// Returns `[a, b]`.
std::string List(const std::vector<std::string>& items, const char* between) {
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : between) + item;
  return StrCat("[", text, "]");
}

}  // namespace

void PrintTable(const Results& results) {
  if (!results.summary.empty()) std::printf("%s\n", results.summary.c_str());
  for (const std::string& failure : results.failures) std::printf("FAILED %s\n", failure.c_str());
  if (results.num_checks > 0) {
    std::printf("%d checks of kernels against the CPU: %d failed\n", results.num_checks, results.num_failed_checks);
  }
  if (const std::string nccl = NcclText(results); !nccl.empty()) std::printf("NCCL: %s\n", nccl.c_str());
  for (const Exchange& exchange : results.exchanges) {
    std::printf("collectives, %s: %s\n", exchange.name.c_str(), Outcome(exchange).c_str());
  }
  if (results.measures.empty()) return;
  std::printf("%-36s %10s %10s %10s %8s\n", "kernel", "MB", "us", "GB/s", "of copy");
  for (const Measure& measure : results.measures) {
    std::printf("%-36s %10.1f %10.1f %10.1f %7.0f%%\n", measure.name.c_str(), static_cast<double>(measure.bytes) / 1e6,
                measure.us, measure.bytes_per_us() / 1e3, 100 * ShareOfCopy(results, measure));
  }
}

std::string ToJson(const Results& results) {
  std::vector<std::string> failures, exchanges, measures;
  for (const std::string& failure : results.failures) failures.push_back(JsonText(failure));
  if (!results.no_device.empty()) failures.push_back(JsonText("no device: " + results.no_device));
  if (!results.running.empty()) failures.push_back(JsonText(results.running + ": the program ended before this part"));
  for (const Exchange& exchange : results.exchanges) {
    exchanges.push_back(StrCat("\n    {\"of\": ", JsonText(exchange.name), ", \"failure\": ",
                               JsonText(exchange.failure), ", \"refusal\": ", JsonText(exchange.refusal),
                               ", \"is_run\": ", exchange.missing.empty() ? "true" : "false", "}"));
  }
  for (const Measure& measure : results.measures) {
    measures.push_back(StrCat("\n    {\"kernel\": ", JsonText(measure.name), ", \"bytes\": ", measure.bytes,
                              ", \"us\": ", measure.us, ", \"share_of_copy\": ", ShareOfCopy(results, measure), "}"));
  }
  return StrCat("{\n  \"device\": ", JsonText(results.device), ",\n  \"runtime\": ", JsonText(results.runtime),
                ",\n  \"driver\": ", results.driver.empty() ? "0" : results.driver,
                ",\n  \"nccl\": ", JsonText(NcclText(results)), ",\n  \"checks\": ", results.num_checks,
                ",\n  \"failures\": ", List(failures, ", "), ",\n  \"collectives\": ", List(exchanges, ","),
                ",\n  \"measures\": ", List(measures, ","), "\n}\n");
}

}  // namespace lockstep::device
