#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/comm/collective/communicator.h"

// The checks of everything that peers announce and send in collectives. A peer may run another program, or may be
// damaged, so each number in a message is compared with a limit before it is used. Each way to receive has one reader:
//
//   all ranks know the sizes                       Expecting
//   only the sender knows the size                 Arrivals, and a MessageReader if the message has parts
//   the numbers of all ranks, a few from each      GatherNumbers
//   the backends, before memory is allocated       CheckAnnounced (by AllocateFor in arguments.h)
//
// All errors are DATA_LOSS and name the exchange, the rank and the numbers. They are returned on the rank that sees
// them, after the exchange: the communicator stays usable.
namespace lockstep {

// Returns an Allocate of `memory` for an exchange whose counts all ranks know: `wanted[r]` items come from rank r, [R].
// Another count is an error, because it would write beyond the memory. The arguments have to outlive the exchange.
Allocate Expecting(std::string_view exchange, std::span<const int64_t> wanted, void* memory);

// Returns an error if a count is negative, or all items together exceed the memory of this machine. counts: [n].
// ranks: the names of the announcing ranks, [n]; empty: 0 to n - 1.
Status CheckAnnounced(std::string_view exchange, std::span<const int64_t> counts, int64_t item_bytes,
                      std::span<const int> ranks = {});

// Reads the message of one rank from its first byte to its last. A number is compared with the bytes that are left
// before it is used. Numbers have the machine's byte order and any alignment. The arguments have to outlive the reader.
class MessageReader {
 public:
  MessageReader(std::string_view exchange, int source, std::string_view message)
      : exchange_(exchange), source_(source), left_(message) {}

  // Returns the next number. `what` is for messages: "numbers of lookups".
  Result<int64_t> Number(std::string_view what);
  // Returns the next `count` units of `unit_bytes` bytes. An error if `count` is negative, or if fewer bytes are left.
  Result<std::string_view> Take(int64_t count, int64_t unit_bytes, std::string_view what);
  // Returns an error if bytes are left.
  Status End() const;

 private:
  std::string_view exchange_;
  int source_;
  std::string_view left_;
};

// The bytes that come from all ranks in an exchange of which only the senders know the sizes.
// ```cpp
// Arrivals arrivals(name);
// LOCKSTEP_RETURN_IF_ERROR(communicator.AllToAllV(name, {DType::kUInt8, 1}, counts, data, arrivals.Into(1)));
// for (int r = 0; r < size; ++r) Read(arrivals.From(r));
// ```
// Memory is not cleared: what no peer has sent takes none. `exchange` has to outlive this object.
class Arrivals {
 public:
  // most_bytes: the limit for each rank; 0: the memory of the machine.
  explicit Arrivals(std::string_view exchange, int64_t most_bytes = 0) : exchange_(exchange), most_bytes_(most_bytes) {}

  // Returns an Allocate for items of `item_bytes` bytes. This object has to outlive it.
  Allocate Into(int64_t item_bytes);
  // Returns the bytes of a rank, after the exchange.
  std::string_view From(int rank) const { return {bytes_.get() + starts_[rank], starts_[rank + 1] - starts_[rank]}; }
  MessageReader ReaderOf(int rank) const { return {exchange_, rank, From(rank)}; }
  // Returns the memory of all messages; views of them stay valid.
  std::unique_ptr<char[]> Release() { return std::move(bytes_); }

 private:
  std::string_view exchange_;
  int64_t most_bytes_;
  std::vector<size_t> starts_;  // [R + 1]
  std::unique_ptr<char[]> bytes_;
};

// A number that each rank has, and the values that it may have.
struct SharedNumber {
  std::string what;  // for messages: "changed rows of table 'user'"
  int64_t mine;
  int64_t least;
  int64_t most;
};

// Gives every rank the numbers of all, [R, N]. It is a collective; all ranks pass the same N numbers, with the same
// limits. DATA_LOSS for a number outside of its limits.
Result<std::vector<int64_t>> GatherNumbers(Communicator& communicator, std::string_view name,
                                           std::span<const SharedNumber> numbers);

}  // namespace lockstep
