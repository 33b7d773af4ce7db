#pragma once

#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/sha256.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"

namespace lockstep::gloo {

// The connections between the ranks of a group on several hosts: made here, and proven, before anybody else knows of
// them. Each pair of ranks meets once, the one with the higher index calls:
//
//   caller                                     callee
//     |--------------- connect ----------------->|
//     |<-- banner: nonce ------------------------|
//     |--- proof: index, nonce, HMAC ----------->|  a stranger is hung up on here
//     |<-- answer: HMAC -------------------------|  and here the caller knows who answers
//
//   LOCKSTEP_ASSIGN_OR_RETURN(Introductions introductions, Introductions::Listen("10.0.0.7", "rank 3"));
//   ... tell introductions.address() to the peers, learn theirs ...
//   LOCKSTEP_ASSIGN_OR_RETURN(std::vector<UniqueFd> sockets, introductions.Connect(...));
//
// The proofs are HMACs under the meeting's key of both indices and fresh random numbers of both ends. What a stranger
// can do is bounded: it costs one descriptor of kMaxUnproven, for kHandshake_s at most, and less than 100 bytes of
// memory; nothing of it is answered but by the banner and, where it sends a wrong proof, by zeros. Whoever is turned
// away disturbs nobody. The port is closed when all are there.
//
// Owns the port; the connections are the caller's. Thread-compatible.
class Introductions {
 public:
  static constexpr size_t kMaxUnproven = 64;
  static constexpr double kHandshake_s = 10;

  // Opens a port that the kernel picks at a numeric address of this machine. UNAVAILABLE where that can't be listened
  // at. `who`: this rank, for messages.
  static Result<Introductions> Listen(const std::string& address, const std::string& who);

  // "10.0.0.7:40123", "[fd00::7]:40123".
  const std::string& address() const { return address_; }

  // The sockets to all others, [n], that of `index` invalid: non-blocking, closed on exec, without delay, with
  // keepalive.
  //   ranks      how messages call them, [n]
  //   addresses  where each listens, [n]; the own and those of callers are not looked at
  //   ended      asked some times a second: what it returns, if that is not OK, is returned. May be null
  // DEADLINE_EXCEEDED names the first rank that is missing; FAILED_PRECONDITION: who answers does not know the key;
  // INVALID_ARGUMENT: an address that cannot be read. To be called once.
  Result<std::vector<UniqueFd>> Connect(int index, std::span<const int> ranks, std::span<const std::string> addresses,
                                        const Digest& key, const Deadline& deadline,
                                        const std::function<Status()>& ended);

 private:
  Introductions(UniqueFd listener, std::string address)
      : listener_(std::move(listener)), address_(std::move(address)) {}

  UniqueFd listener_;
  std::string address_;
};

}  // namespace lockstep::gloo
