#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/sha256.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"

// Folder rendezvous/: how ranks find and authenticate each other over TCP, and which address of a machine they use.

namespace lockstep {

// The meeting of a job's R ranks over TCP, the same for every backend: each brings a note (how to reach it, what it was
// configured with) and takes home the notes of all.
//
//   guest                           host (rank 0)
//     |------------ connect ---------->|
//     |<-- banner: version, nonce -----|
//     |--- proof: nonce, HMAC -------->|  a stranger is turned away here
//     |<-- verdict: HMAC --------------|  and here the guest knows that this is rank 0
//     |--- hello: rank, size, note --->|
//     |          ... all R are there, or it is clear that they won't be ...
//     |<-- answer: notes or error -----|
//
// Rank 0 listens at `address`, or where it is told to; the others come, prove that they know the job's secret
// (HMAC-SHA-256 over fresh random numbers of both sides; the secret itself never travels) and wait. When all are there,
// rank 0 sends everybody's notes. A stranger that sends garbage, nothing, or a proof with the wrong secret is turned
// away and disturbs nobody. The bytes on the wire are in docs/wire_protocol.md. They are not encrypted: no secrets in a
// note.
struct RendezvousOptions {
  int rank = 0;
  int size = 1;
  std::string address;      // "host:port" or "[v6 address]:port"
  std::string secret;       // of the job
  std::string note;         // at most kMaxNoteBytes
  double timeout_s = 60;    // until all have to be there
  int listener = -1;        // of rank 0: a socket that listens at `address` already, the caller's; -1: Meet makes one
  std::string listen = {};  // of rank 0: where it listens, "[::]:port" for all its addresses; "": at `address`
  // What else may end the wait: asked some times a second where it is not null, and what it returns, if that is not OK,
  // is returned. (The others of the meeting are not told: it is for who watches them by other means.)
  std::function<Status()> ended = {};
  // What rank 0's error calls a rank that is missing, by the note that it had brought before it went away ("": it had
  // not come), like "rank 3 (process 12 on host b)"; "" where nothing is known of it but its number. May be null.
  std::function<std::string(int rank, std::string_view note)> name = {};
  // Whether the connections outlive the meeting, as Meeting::connections; the same on all ranks.
  bool keep_connections = false;
};

// The answer holds the notes and addresses of all ranks and has to fit into one frame (wire::kMaxAnswerBytes, 4 MiB):
// 512 ranks with notes of 4 KiB fill half of it. Where it does not fit, all get INVALID_ARGUMENT.
inline constexpr size_t kMaxNoteBytes = 16 << 10;

// What a rank takes home. Addresses are numeric and without a port: "10.0.0.1", "fe80::1%eth0". The scope of a
// link-local address is an interface of the machine that saw it.
struct Meeting {
  std::vector<std::string> notes = {};  // one of each rank, [R]
  Digest key = {};                      // known to the ranks of this meeting alone: proves who is who in what follows
  // The address by which rank 0 sees each rank, [R]; of rank 0 the one by which this rank sees it, and on rank 0
  // `own_address`.
  std::vector<std::string> addresses = {};
  // This rank's end of its connection to rank 0; on rank 0, of that to the lowest other rank. Empty where there is
  // none.
  std::string own_address = {};
  // With keep_connections, [R]: on rank 0 the connection to each other rank ([0] is invalid), on the others that to
  // rank 0 as [0] and nothing else. Both ends have proven who they are; what is said over them from now on is not
  // protected by that. Non-blocking, without delay (TCP_NODELAY), closed on exec, with keepalive. Without
  // keep_connections empty.
  std::vector<UniqueFd> connections = {};
};

// Blocks until all ranks are there or `timeout_s` has passed; a guest waits longer for rank 0's report, as rank 0 knows
// who is missing: until that has to be there, at most 10 s. A rank that had come and went away, as it died, ends the
// wait of all some 5 s later, unless it comes again before. Of rank 0 its guests see that at once, and one that had not
// said yet who it is tries for 5 s to reach it again. Starts no threads, and leaves no socket of its own open but
// those it returns. Any number of meetings may go on in one process at the same time, each on a thread of its own; one
// may follow another at the same address at once, whoever comes first.
//
// Errors: DEADLINE_EXCEEDED names the ranks that are missing, and where they are if they were there; UNAVAILABLE those
// that were there and have not come back;
// FAILED_PRECONDITION: another process is this rank already, or the secrets or sizes differ; INVALID_ARGUMENT:
// `address` can't be read or resolved, or the note is too long, or all notes together are; UNAVAILABLE also: rank 0
// can't listen there, or went away; DATA_LOSS: what came is not what was sent. The host returns an error only when the
// job cannot be; a guest also when it alone was refused.
Result<Meeting> Meet(const RendezvousOptions& options);

}  // namespace lockstep
