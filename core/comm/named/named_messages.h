#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/comm/named/named_batch.h"

namespace lockstep {

// The messages between the ranks of a named lane. Each begins with a byte for its kind:
//
//   'r' requests, to the message's end          a rank to rank 0
//   'c' cancelled: ticket 8, name, why          a rank to rank 0
//   'b' batches, to the message's end           rank 0 to all
//   'l' left: how, to the message's end         a rank to rank 0, rank 0 to all
//   'e' ended: status                           the same; the lane is broken
//   'd' of the guest (shared_links.h)           a rank to rank 0, rank 0 to a rank
//
// Lists of requests and of batches take as many messages as they need, each far below the limit of a link.
namespace named_messages {

inline constexpr char kRequests = 'r', kCancelled = 'c', kBatches = 'b', kLeft = 'l', kEnded = 'e', kOfGuest = 'd';

std::vector<std::string> OfRequests(const std::vector<NamedRequest>& requests);
std::vector<std::string> OfBatches(const std::vector<NamedBatch>& batches);
std::string OfLeft(std::string_view how);
std::string OfEnd(const Status& why);

// A rank gives up one of its own requests.
struct Cancellation {
  uint64_t ticket = 0;
  std::string name;
  std::string why;
};
std::string Of(const Cancellation& cancellation);

// The kind of a message; 0 for an empty one.
char KindOf(std::string_view message);

// Nothing if it is not a message of that kind.
std::optional<std::vector<NamedRequest>> ReadRequests(std::string_view message);
std::optional<std::vector<NamedBatch>> ReadBatches(std::string_view message, int ranks);
std::optional<Cancellation> ReadCancellation(std::string_view message);
// How a rank left; may be empty.
std::string_view ReadLeft(std::string_view message);
// The status is not OK.
std::optional<Status> ReadEnd(std::string_view message);

}  // namespace named_messages
}  // namespace lockstep
