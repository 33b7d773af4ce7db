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

// The connections between the ranks of a group on several hosts. They are made and authenticated here, before other
// code uses them. Each pair of ranks connects once; the rank with the higher index calls:
// ```
// caller                                     callee
//   |--------------- connect ----------------->|
//   |<-- banner: nonce ------------------------|
//   |--- proof: index, nonce, HMAC ----------->|  a wrong proof ends the connection here
//   |<-- answer: HMAC -------------------------|  and here the caller has authenticated the callee
// ```
// ```cpp
// LOCKSTEP_ASSIGN_OR_RETURN(Introductions introductions, Introductions::Listen("10.0.0.7", "rank 3"));
// ... tell introductions.address() to the peers, learn theirs ...
// LOCKSTEP_ASSIGN_OR_RETURN(std::vector<UniqueFd> sockets, introductions.Connect(...));
// ```
// The proofs are HMACs under the rendezvous' key, of both indices and fresh random numbers of both ends. The cost of an
// unauthenticated connection is bounded: one of kMaxUnproven descriptors, for at most kHandshake_s, and less than 100
// bytes of memory. It gets only the banner and, after a wrong proof, zeros. A refused caller disturbs no other. The
// port is closed when all ranks are connected.
//
// Owns the port; the connections are the caller's. Thread-compatible.
class Introductions {
 public:
  static constexpr size_t kMaxUnproven = 64;
  static constexpr double kHandshake_s = 10;

  // Opens a port, chosen by the kernel, at a numeric address of this machine. UNAVAILABLE if it cannot listen there.
  // `who`: this rank, for messages.
  static Result<Introductions> Listen(const std::string& address, const std::string& who);

  // Returns "10.0.0.7:40123" or "[fd00::7]:40123".
  const std::string& address() const { return address_; }

  // Returns the sockets to all others, [n]; the one at `index` is invalid. They are non-blocking, closed on exec,
  // without delay, with keepalive.
  //   ranks      the ranks' names in messages, [n]
  //   addresses  the address of each, [n]; the addresses of this rank and of callers are not used
  //   ended      called some times per second; its first error is returned. May be null
  // DEADLINE_EXCEEDED names the ranks that are missing. FAILED_PRECONDITION if the answering program does not know the
  // key. INVALID_ARGUMENT for an address that cannot be parsed. Call it once.
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
