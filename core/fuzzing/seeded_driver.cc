// Runs a target over its seeds and over mutations of them, the same ones each time.
//
//   x_fuzz [--seed 1] [--first 0] [--inputs N] [--seconds S] [FILE...]
//
// Runs N inputs, or inputs for S seconds. Without either option it runs 100000 inputs for at most 1.5 s, which is a
// target's share of `make test`. With files, it runs only these: inputs that libFuzzer has kept. It ends with one line
// that sums up the run. If the target dies on an input, or takes longer than 20 s, the driver prints the input's
// number, with which the run can be repeated. The driver limits the memory, so that an input that takes too much dies,
// too.
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "core/fuzzing/fuzz.h"

namespace lockstep::fuzzing {
namespace {

constexpr unsigned kMostSeconds = 20;
// The limit above the process's memory at the start: more than any target needs, and less than what hostile lengths ask
// for.
constexpr rlim_t kMostBytes = rlim_t{1} << 30;

// The current input, read by the signal handler.
volatile uint64_t now_seed = 0, now_number = 0;

// Writes without allocating, as the signal may have interrupted an allocation.
void WriteNumber(uint64_t number) {
  char digits[20];
  size_t at = sizeof(digits);
  do {
    digits[--at] = static_cast<char>('0' + number % 10);
    number /= 10;
  } while (number != 0);
  [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, digits + at, sizeof(digits) - at);
}
void WriteText(const char* text) { [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, text, std::strlen(text)); }

extern "C" void OnDeath(int signal) {
  WriteText(signal == SIGALRM ? "\nfuzz: an input takes too long" : "\nfuzz: an input ended the program");
  WriteText("; again with: --seed ");
  WriteNumber(now_seed);
  WriteText(" --first ");
  WriteNumber(now_number);
  WriteText(" --inputs 1\n");
  raise(signal == SIGALRM ? SIGKILL : signal);  // the handler is already removed, so this signal ends the process
}

void Watch() {
  struct sigaction action = {};
  action.sa_handler = OnDeath;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM}) sigaction(signal, &action, nullptr);
  // Sanitizers reserve huge parts of the address space.
  if (LOCKSTEP_SANITIZED) return;
  long pages = 0;
  if (!(std::ifstream("/proc/self/statm") >> pages)) return;
  const rlim_t limit = static_cast<rlim_t>(pages) * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + kMostBytes;
  const rlimit wanted = {limit, limit};
  setrlimit(RLIMIT_AS, &wanted);
}

void Run(const std::string& input) {
  alarm(kMostSeconds);
  Fuzz(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

int Main(int argc, char** argv) {
  uint64_t seed = 1, first = 0;
  std::optional<uint64_t> inputs;
  std::optional<double> seconds;
  std::vector<std::string> files;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (!argument.starts_with("--")) {
      files.push_back(argument);
      continue;
    }
    if (i + 1 == argc) {
      std::fprintf(stderr, "fuzz: %s wants a number\n", argv[i]);
      return 2;
    }
    const char* value = argv[++i];
    if (argument == "--seconds") {
      seconds = std::strtod(value, nullptr);
    } else if (argument == "--inputs") {
      inputs = std::strtoull(value, nullptr, 10);
    } else if (argument == "--seed" || argument == "--first") {
      (argument == "--seed" ? seed : first) = std::strtoull(value, nullptr, 10);
    } else {
      std::fprintf(stderr, "fuzz: got %s, wanted --seed, --first, --inputs or --seconds\n", argv[i - 1]);
      return 2;
    }
  }
  const std::string path = argv[0];
  const std::string name = path.substr(path.rfind('/') + 1);
  for (const std::string& file : files) {
    std::ifstream stream(file, std::ios::binary);
    Run({std::istreambuf_iterator<char>(stream), {}});
  }
  if (!files.empty()) {
    std::printf("%s: %zu files\n", name.c_str(), files.size());
    return 0;
  }
  const std::vector<std::string> seeds = Seeds();
  Watch();
  now_seed = seed;
  const auto begin = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  for (const std::string& input : seeds) Run(input);
  uint64_t done = 0;
  const uint64_t most = inputs.value_or(seconds ? UINT64_MAX : 100000);
  const double limit_s = seconds.value_or(inputs ? 1e9 : 1.5);
  for (; done < most && elapsed() < limit_s; ++done) {
    now_number = first + done;
    Run(Mutate(seeds, seed, now_number));
  }
  alarm(0);
  std::printf("%s: seed %llu, %zu seeds and %llu inputs from number %llu on in %.1f s, no finding\n", name.c_str(),
              static_cast<unsigned long long>(seed), seeds.size(), static_cast<unsigned long long>(done),
              static_cast<unsigned long long>(first), elapsed());
  return 0;
}

}  // namespace
}  // namespace lockstep::fuzzing

int main(int argc, char** argv) { return lockstep::fuzzing::Main(argc, argv); }
