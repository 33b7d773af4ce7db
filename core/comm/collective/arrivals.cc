#include "core/comm/collective/arrivals.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "core/base/strings.h"

namespace lockstep {
namespace {

// Data that is received has to be in memory, so no honest rank announces more. With swap space, and small enough that
// the sum of two does not overflow.
int64_t MachineBytes() {
  static const int64_t bytes = [] {
    constexpr int64_t kMost = int64_t{1} << 50;
    struct sysinfo info = {};
    if (sysinfo(&info) != 0) return kMost;
    return std::min(kMost, static_cast<int64_t>(info.totalram + info.totalswap) * static_cast<int64_t>(info.mem_unit));
  }();
  return bytes;
}

// Names the i-th of the ranks that announce something.
int NameOf(size_t i, std::span<const int> ranks) { return ranks.empty() ? static_cast<int>(i) : ranks[i]; }

Status CheckLimit(std::string_view exchange, std::span<const int64_t> counts, int64_t item_bytes, int64_t most_bytes,
                  std::span<const int> ranks) {
  const int64_t most = most_bytes / std::max<int64_t>(item_bytes, 1);
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] >= 0 && counts[i] <= most) continue;
    return DataLoss(StrCat("'", exchange, "': rank ", NameOf(i, ranks), " announces ", counts[i], " items of ",
                           item_bytes, " bytes, wanted 0 to ", most));
  }
  return OkStatus();
}

}  // namespace

Allocate Expecting(std::string_view exchange, std::span<const int64_t> wanted, void* memory) {
  return [exchange, wanted, memory](std::span<const int64_t> counts) -> Result<void*> {
    for (size_t r = 0; r < counts.size(); ++r) {
      if (counts[r] == wanted[r]) continue;
      return DataLoss(StrCat("'", exchange, "': rank ", r, " sends ", counts[r], " items, wanted ", wanted[r]));
    }
    return memory;
  };
}

Status CheckAnnounced(std::string_view exchange, std::span<const int64_t> counts, int64_t item_bytes,
                      std::span<const int> ranks) {
  LOCKSTEP_RETURN_IF_ERROR(CheckLimit(exchange, counts, item_bytes, MachineBytes(), ranks));
  const int64_t most = MachineBytes() / std::max<int64_t>(item_bytes, 1);
  int64_t sum = 0;
  for (const int64_t count : counts) {
    sum += count;
    if (sum <= most) continue;
    const size_t largest = std::max_element(counts.begin(), counts.end()) - counts.begin();
    return DataLoss(StrCat("'", exchange, "': the ranks announce more items of ", item_bytes,
                           " bytes than the memory of this machine, ", most, "; rank ", NameOf(largest, ranks),
                           " announces ", counts[largest]));
  }
  return OkStatus();
}

Result<int64_t> MessageReader::Number(std::string_view what) {
  int64_t number;
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string_view bytes, Take(1, sizeof(number), what));
  std::memcpy(&number, bytes.data(), sizeof(number));
  return number;
}

Result<std::string_view> MessageReader::Take(int64_t count, int64_t unit_bytes, std::string_view what) {
  const auto left = static_cast<int64_t>(left_.size());
  if (count < 0 || count > left / std::max<int64_t>(unit_bytes, 1)) {
    return DataLoss(StrCat("'", exchange_, "': rank ", source_, " announces ", count, " ", what, " of ", unit_bytes,
                           " bytes; its message has ", left, " bytes for them"));
  }
  const std::string_view taken = left_.substr(0, static_cast<size_t>(count * unit_bytes));
  left_.remove_prefix(taken.size());
  return taken;
}

Status MessageReader::End() const {
  if (left_.empty()) return OkStatus();
  return DataLoss(
      StrCat("'", exchange_, "': the message of rank ", source_, " has ", left_.size(), " bytes after its end"));
}

Allocate Arrivals::Into(int64_t item_bytes) {
  return [this, item_bytes](std::span<const int64_t> counts) -> Result<void*> {
    if (most_bytes_ > 0) LOCKSTEP_RETURN_IF_ERROR(CheckLimit(exchange_, counts, item_bytes, most_bytes_, {}));
    LOCKSTEP_RETURN_IF_ERROR(CheckAnnounced(exchange_, counts, item_bytes));
    starts_.assign(1, 0);
    for (const int64_t count : counts) starts_.push_back(starts_.back() + static_cast<size_t>(count * item_bytes));
    bytes_.reset(new (std::nothrow) char[starts_.back()]);
    if (bytes_ == nullptr) {
      return ResourceExhausted(StrCat("'", exchange_, "': no memory for ", starts_.back(), " bytes of all ranks"));
    }
    return static_cast<void*>(bytes_.get());
  };
}

Result<std::vector<int64_t>> GatherNumbers(Communicator& communicator, std::string_view name,
                                           std::span<const SharedNumber> numbers) {
  const size_t size = static_cast<size_t>(communicator.size()), width = numbers.size();
  std::vector<int64_t> mine, all(size * width);
  for (const SharedNumber& number : numbers) mine.push_back(number.mine);
  const std::vector<int64_t> one_each(size, 1);
  LOCKSTEP_RETURN_IF_ERROR(communicator.AllGatherV(name, Item{DType::kInt64, static_cast<int64_t>(width)}, 1,
                                                   mine.data(), Expecting(name, one_each, all.data())));
  for (size_t i = 0; i < all.size(); ++i) {
    const SharedNumber& number = numbers[i % width];
    if (all[i] >= number.least && all[i] <= number.most) continue;
    return DataLoss(StrCat("'", name, "': rank ", i / width, " sends ", all[i], " as ", number.what, ", wanted ",
                           number.least, " to ", number.most));
  }
  return all;
}

}  // namespace lockstep
