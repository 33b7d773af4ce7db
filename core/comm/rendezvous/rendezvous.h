#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/sha256.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"

// Folder rendezvous/: how ranks find and authenticate each other over TCP, and how a machine's address is chosen.

namespace lockstep {

// The rendezvous of a job's R ranks over TCP, the same for every backend. Each rank brings a note (how to reach it, how
// it was configured) and gets the notes of all.
// ```
// guest                           host (rank 0)
//   |------------ connect ---------->|
//   |<-- banner: version, nonce -----|
//   |--- proof: nonce, HMAC -------->|  a peer without the secret is refused here
//   |<-- verdict: HMAC --------------|  now the guest knows that this is rank 0
//   |--- hello: rank, size, note --->|
//   |          ... all R are there, or it is clear that not all will come ...
//   |<-- answer: notes or error -----|
// ```
// Rank 0 listens at `address`, or at another place that it is given. The others come, prove that they know the job's
// secret, and wait. (The proof is HMAC-SHA-256 over new random numbers of both sides; the secret itself is never sent.)
// When all are there, rank 0 sends the notes of all to all. A peer without the secret, one that sends garbage, or one
// that sends nothing is refused and disturbs no rank. The bytes on the wire are in docs/wire_protocol.md. They are not
// encrypted, so a note must hold no secrets.
struct RendezvousOptions {
  int rank = 0;
  int size = 1;
  std::string address;    // "host:port" or "[v6 address]:port"
  std::string secret;     // of the job
  std::string note;       // at most kMaxNoteBytes
  double timeout_s = 60;  // the time for all ranks to come
  // For rank 0: the caller's socket, which listens at `address` already; no value: rank 0 opens one.
  std::optional<int> listener = {};
  std::string listen = {};  // for rank 0: where it listens, "[::]:port" for all its addresses; "": at `address`
  // Another condition that ends the wait. If it is not null, it is called some times a second; if it returns an error,
  // that is the result. (The others in the rendezvous are not told: it is for callers that watch them by other means.)
  std::function<Status()> ended = {};
  // The name of a missing rank in rank 0's error, such as "rank 3 (process 12 on host b)". `note` is the note that the
  // rank brought before it left ("": it had not come). Returns "" if nothing but its number is known. May be null.
  std::function<std::string(int rank, std::string_view note)> name = {};
  // Whether the connections outlive the rendezvous, as `RendezvousResult::connections`; the same on all ranks.
  bool keep_connections = false;
};

// The answer holds the notes and addresses of all ranks and has to fit into one frame (wire::kMaxAnswerBytes, 4 MiB):
// 512 ranks with notes of 4 KiB fill half of it. If it does not fit, all get INVALID_ARGUMENT.
inline constexpr size_t kMaxNoteBytes = 16 << 10;

// The result for one rank. Addresses are numeric and without a port: "10.0.0.1", "fe80::1%eth0". The scope of a
// link-local address is an interface of the machine that recorded it.
struct RendezvousResult {
  std::vector<std::string> notes = {};  // one of each rank, [R]
  Digest key = {};                      // known only to these ranks: they prove themselves with it later
  // The address of each rank as rank 0 sees it, [R]. The entry for rank 0 is its address as this rank sees it; on rank
  // 0 it is `own_address`.
  std::vector<std::string> addresses = {};
  // The address of this rank's end of its connection to rank 0; on rank 0, of its connection to the lowest other rank.
  // Empty if there is none.
  std::string own_address = {};
  // With keep_connections, [R]: on rank 0 the connection to each other rank ([0] is invalid); on the others only the
  // connection to rank 0, as [0]. Both ends have proven themselves, but later data on these connections is not
  // protected by that. Non-blocking, without delay (TCP_NODELAY), closed on exec, with keepalive. Empty without
  // keep_connections.
  std::vector<UniqueFd> connections = {};
};

// Blocks until all ranks are there or `timeout_s` has passed. A guest waits at most 10 s longer for rank 0's report, as
// rank 0 knows which ranks are missing. A rank that came and left, because it died, ends the wait of all some 5 s
// later, unless it comes again before. If rank 0 is gone, its guests notice at once; a guest that had not sent its
// hello tries for 5 s to reach it again. Starts no threads, and leaves only the returned sockets open. Any number of
// calls may run at the same time in one process, each on its own thread. One may follow another at the same address at
// once, whichever rank comes first.
//
// Errors. DEADLINE_EXCEEDED names the missing ranks, with their host if they have been here. UNAVAILABLE names the
// ranks that were here and have not come back; it also means that rank 0 cannot listen there, or has left.
// FAILED_PRECONDITION: another process is this rank already, or the secrets or sizes differ. INVALID_ARGUMENT:
// `address` cannot be parsed or resolved, or the note is too long, or all notes together are. DATA_LOSS: the received
// data is not what was sent. The host returns an error only if the job cannot start; a guest also if only this guest
// was refused.
Result<RendezvousResult> JoinRendezvous(const RendezvousOptions& options);

}  // namespace lockstep
