#pragma once

#include <string>
#include <vector>

#include "core/base/sha256.h"
#include "core/base/status.h"

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
// Rank 0 listens at `address`; the others come, prove that they know the job's secret (HMAC-SHA-256 over fresh random
// numbers of both sides; the secret itself never travels) and wait. When all are there, rank 0 sends everybody's notes.
// A stranger that sends garbage, nothing, or a proof with the wrong secret is turned away and disturbs nobody. The
// bytes on the wire are in docs/wire_protocol.md. They are not encrypted: no secrets in a note.
struct RendezvousOptions {
  int rank = 0;
  int size = 1;
  std::string address;    // "host:port" or "[v6 address]:port"
  std::string secret;     // of the job
  std::string note;       // at most kMaxNoteBytes
  double timeout_s = 60;  // until all have to be there
  int listener = -1;      // of rank 0: a socket that listens at `address` already, the caller's; -1: Meet makes one
};

// The answer holds the notes of all ranks and has to fit into one frame (wire::kMaxFrameBytes): 16 ranks fill a
// quarter.
inline constexpr size_t kMaxNoteBytes = 1024;

// What a rank takes home.
struct Meeting {
  std::vector<std::string> notes;  // one of each rank
  Digest key;                      // known to the ranks of this meeting alone: proves who is who in what follows
};

// Blocks until all ranks are there or `timeout_s` has passed; a guest waits 10 s longer for rank 0's report, as rank 0
// knows who is missing. Starts no threads, and leaves no socket of its own open. Any number of meetings may go on in
// one process at the same time, each on a thread of its own.
//
// Errors: DEADLINE_EXCEEDED names the ranks that are missing; FAILED_PRECONDITION: another process is this rank
// already, or the secrets or sizes differ; INVALID_ARGUMENT: `address` can't be read or resolved, or the note is too
// long; UNAVAILABLE: rank 0 can't listen there, or went away; DATA_LOSS: what came is not what was sent. The host
// returns an error only when the job cannot be; a guest also when it alone was refused.
Result<Meeting> Meet(const RendezvousOptions& options);

}  // namespace lockstep
