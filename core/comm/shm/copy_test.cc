#include "core/comm/shm/copy.h"

#include <gtest/gtest.h>

#include <string>

namespace lockstep::shm {
namespace {

// Sizes around a line, and around the 512 bytes from which lines are copied one by one. Bytes before and after the
// target must stay, so the whole buffer is compared. 251 is a prime, so no piece of the source repeats at a multiple of
// a line.
TEST(CopyTest, CopiesExactlyTheRangeAtAnyAlignment) {
  std::string source(5000, '\0');
  for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<char>(i * 7 % 251);
  for (const auto copy : {&CopyStreaming, &CopyCached}) {
    for (int64_t bytes : {0, 1, 63, 64, 511, 512, 513, 4096, 4801}) {
      for (size_t from : {0, 1, 16, 63}) {
        for (size_t to : {0, 3, 16, 64, 65}) {
          std::string target(6000, '!'), wanted = target;
          copy(target.data() + to, source.data() + from, bytes);
          wanted.replace(to, static_cast<size_t>(bytes), source, from, static_cast<size_t>(bytes));
          ASSERT_EQ(target, wanted) << bytes << " bytes from " << from << " to " << to;
        }
      }
    }
    copy(nullptr, nullptr, 0);
  }
}

}  // namespace
}  // namespace lockstep::shm
