// Adapts a target to libFuzzer. Writes the target's seeds into the folder of the corpus, which is the first argument
// that is not an option, before libFuzzer reads it.
#include <sys/stat.h>

#include <fstream>
#include <string>

#include "core/fuzzing/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) { return lockstep::fuzzing::Fuzz(data, size); }

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  for (int i = 1; i < *argc; ++i) {
    const std::string folder = (*argv)[i];
    struct stat info = {};
    if (folder.starts_with("-") || stat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) continue;
    int number = 0;
    for (const std::string& seed : lockstep::fuzzing::Seeds()) {
      std::ofstream(folder + "/seed-" + std::to_string(number++), std::ios::binary) << seed;
    }
    break;
  }
  return 0;
}
