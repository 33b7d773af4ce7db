#pragma once

#include <string>
#include <vector>

#include "core/device/check/exchanges.h"
#include "core/device/check/measures.h"

namespace lockstep::device {

// The results of the program device_check.
struct Results {
  std::string summary;  // "NVIDIA H200, compute capability 9.0, ..."; "": no device is known
  std::string device;
  std::string runtime;
  std::string driver;     // a number
  std::string no_device;  // why there is none
  // The part that runs; "" at the end. The JSON of a run that did not end names it as a failure.
  std::string running;
  int num_checks = 0;                 // of kernels, that have run
  int num_failed_checks = 0;          // of these
  std::vector<std::string> failures;  // of all parts
  std::vector<Exchange> exchanges;
  std::vector<Measure> measures;

  // Returns 0, 1 after a failure, or 3 without a device.
  int exit_code() const { return !no_device.empty() ? 3 : failures.empty() ? 0 : 1; }
};

// Prints the results for people.
void PrintTable(const Results& results);

// Returns the same results as JSON.
std::string ToJson(const Results& results);

}  // namespace lockstep::device
