#include "core/comm/gloo/streams.h"

#include <gloo/transport/address.h>
#include <gloo/transport/tcp/device.h>
#include <signal.h>

#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>

#include "core/base/strings.h"
#include "core/comm/rendezvous_wire.h"

// Gloo (tcp transport): a thread of its own reads from all connections, into memory that was readied by recv, and
// writes what the calling thread could not write at once. Its waits can be ended from outside (abortWaitRecv); what
// happens to a connection it says by exceptions, of the waits and of everything else.
//
// Gloo's own timeouts are of no use here: one that passes ends all connections, with words that don't say whose fault
// it is. They are set beyond any wait; Tick ends waits instead.

namespace lockstep::gloo {
namespace {

using Buffer = ::gloo::transport::UnboundBuffer;

// Messages and memory don't mix: each has an order of its own.
constexpr uint64_t kMessages = 0;
constexpr uint64_t kMemory = 1;
constexpr uint64_t kIntroduction = 2;

constexpr auto kForever = std::chrono::hours(24 * 365);

// What the caller proves to the callee: that it knows the key, and which of the ranks it is. `nonce` is the callee's.
Digest ProofOf(const Digest& key, int from, int to, std::string_view nonce) {
  return HmacSha256(AsBytes(key), StrCat("lockstep stream:", from, ">", to, ":", nonce));
}

// Gloo writes to sockets whose other end may be gone, with the signal that comes of it. Blocked in this thread for as
// long as this lives, and taken away where it has come; threads that are started meanwhile have it blocked for good.
class NoBrokenPipes {
 public:
  NoBrokenPipes() {
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoBrokenPipes() {
    constexpr timespec kNoTime = {0, 0};
    sigset_t pending;
    sigpending(&pending);
    if (!was_pending_ && sigismember(&pending, SIGPIPE) == 1) sigtimedwait(&pipe_, nullptr, &kNoTime);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t pipe_, before_;
  bool was_pending_;
};

}  // namespace

struct Streams::Engine {
  std::shared_ptr<::gloo::transport::Device> device;
  std::shared_ptr<::gloo::transport::Context> context;
};

struct Streams::Peer {
  // A buffer and whether something of it is under way.
  struct Window {
    std::vector<char> memory;
    std::unique_ptr<Buffer> buffer;
    bool busy = false;
  };
  std::array<Window, 2> out, in;
  // How many messages were begun, awaited and released: their parity is the window.
  int64_t sent = 0, awaited = 0, released = 0;
  std::deque<std::unique_ptr<Buffer>> posted, sending;
  std::string lost;  // how the connection ended, where that was seen and is not yet an error
};

// The wait that is going on, if any, and how it all ended.
class Streams::Waiting {
 public:
  enum class For { kReceive, kSend };

  // False: broken already.
  bool Begin(Buffer* buffer, For what, int peer, double timeout_s) {
    const std::lock_guard lock(mutex_);
    if (!error_.ok()) return false;
    current_ = buffer;
    what_ = what;
    peer_ = peer;
    deadline_.emplace(Deadline::After(timeout_s));
    return true;
  }
  void End() {
    const std::lock_guard lock(mutex_);
    current_ = nullptr;
    deadline_.reset();
  }
  Status Break(const Status& error) {
    const std::lock_guard lock(mutex_);
    if (!error_.ok()) return error_;
    error_ = error;
    if (current_ != nullptr) what_ == For::kReceive ? current_->abortWaitRecv() : current_->abortWaitSend();
    return error_;
  }
  Status error() const {
    const std::lock_guard lock(mutex_);
    return error_;
  }
  // The peer whose time is over.
  std::optional<int> Late() const {
    const std::lock_guard lock(mutex_);
    return current_ != nullptr && deadline_->Passed() ? std::optional(peer_) : std::nullopt;
  }

 private:
  mutable std::mutex mutex_;
  // All guarded by mutex_.
  Buffer* current_ = nullptr;
  For what_ = For::kReceive;
  int peer_ = 0;
  std::optional<Deadline> deadline_;
  Status error_;
};

Streams::Streams(StreamsOptions options)
    : options_(std::move(options)),
      addresses_(options_.ranks.size()),
      engine_(std::make_unique<Engine>()),
      peers_(options_.ranks.size()),
      waiting_(std::make_unique<Waiting>()) {}

// Buffers go before the connections that they belong to.
Streams::~Streams() {
  (void)Break(Cancelled("the communicator was destroyed"));
  peers_.clear();
  engine_->context.reset();
  engine_->device.reset();
}

Result<std::unique_ptr<Streams>> Streams::Listen(StreamsOptions options) {
  std::unique_ptr<Streams> streams(new Streams(std::move(options)));
  LOCKSTEP_RETURN_IF_ERROR(streams->OpenPorts());
  return streams;
}

Status Streams::OpenPorts() {
  try {
    const NoBrokenPipes quiet;
    ::gloo::transport::tcp::attr where;
    where.hostname = options_.address;
    engine_->device = ::gloo::transport::tcp::CreateDevice(where);
    engine_->context = engine_->device->createContext(options_.index, size());
    engine_->context->setTimeout(kForever);
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == index()) continue;
      const std::vector<char> bytes = engine_->context->createPair(peer)->address().bytes();
      addresses_[peer].assign(bytes.begin(), bytes.end());
      peers_[peer] = std::make_unique<Peer>();
    }
  } catch (const std::exception& error) {
    return Unavailable(StrCat("rank ", options_.ranks[index()], ": cannot listen for other hosts at '",
                              options_.address, "': ", error.what()));
  }
  return OkStatus();
}

template <typename Work>
Status Streams::Guarded(int peer, const Work& work) {
  LOCKSTEP_RETURN_IF_ERROR(waiting_->error());
  if (!peers_[peer]->lost.empty()) return Break(Lost(peer, peers_[peer]->lost));
  std::string words;
  try {
    const NoBrokenPipes quiet;
    work();
    return OkStatus();
  } catch (const std::exception& error) {
    words = error.what();
  }
  return Break(Lost(peer, words));
}

Status Streams::Lost(int peer, const std::string& words) {
  const int rank = options_.ranks[peer];
  if (ask_fate) {
    const Status known = ask_fate(rank);
    if (!known.ok()) {
      return known.WithPrefix(StrCat("rank ", options_.ranks[index()], ": ", Operation(), " ended, because "));
    }
  }
  return Unavailable(StrCat("rank ", options_.ranks[index()], ": the connection to rank ", rank, " ended (", words,
                            "), and it is waited for in ", Operation()));
}

Status Streams::Connect(const std::vector<std::string>& theirs, const Digest& key, const Deadline& deadline) {
  kind_ = "start of the job";
  // Lower ranks first, on all: of each pair one side listens, so that no order can make two wait for each other.
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == index()) continue;
    if (deadline.Passed()) {
      return Break(DeadlineExceeded(StrCat("rank ", options_.ranks[index()], ": no connection to rank ",
                                           options_.ranks[peer], " within the rendezvous timeout")));
    }
    LOCKSTEP_RETURN_IF_ERROR(Guarded(peer, [&] {
      const auto left = std::chrono::duration<double>(deadline.Left());
      engine_->context->setTimeout(std::chrono::duration_cast<std::chrono::milliseconds>(left));
      engine_->context->getPair(peer)->connect({theirs[peer].begin(), theirs[peer].end()});
    }));
  }
  engine_->context->setTimeout(kForever);
  LOCKSTEP_RETURN_IF_ERROR(Introduce(key, deadline));
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != index()) LOCKSTEP_RETURN_IF_ERROR(OpenWindows(peer));
  }
  return OkStatus();
}

// All are told a number before the first answer is awaited, and so on: the order of peers then makes nobody wait for
// somebody who waits for it.
Status Streams::Introduce(const Digest& key, const Deadline& deadline) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string mine, wire::MakeNonce());
  struct Words {
    std::string nonce_out, nonce_in, proof_out, proof_in;
    std::unique_ptr<Buffer> nonce_sent, nonce_received, proof_sent, proof_received;
  };
  std::vector<Words> all(peers_.size());
  const auto for_all = [&](const auto& step) -> Status {
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == index()) continue;
      Status status;
      LOCKSTEP_RETURN_IF_ERROR(Guarded(peer, [&] { status = step(peer, all[peer]); }));
      if (!status.ok()) return Break(status);
    }
    return OkStatus();
  };
  const auto wait = [&](Buffer& buffer, Waiting::For what, int peer) {
    return Wait(buffer, what == Waiting::For::kSend, peer, deadline.Left());
  };
  LOCKSTEP_RETURN_IF_ERROR(for_all([&](int peer, Words& words) {
    words.nonce_out = mine;
    words.nonce_in.resize(wire::kNonceBytes);
    words.proof_in.resize(wire::kTagBytes);
    words.nonce_sent = MakeBuffer(words.nonce_out.data(), wire::kNonceBytes);
    words.nonce_received = MakeBuffer(words.nonce_in.data(), wire::kNonceBytes);
    words.proof_received = MakeBuffer(words.proof_in.data(), wire::kTagBytes);
    words.nonce_received->recv(peer, kIntroduction);
    words.proof_received->recv(peer, kIntroduction);
    words.nonce_sent->send(peer, kIntroduction);
    return OkStatus();
  }));
  LOCKSTEP_RETURN_IF_ERROR(for_all([&](int peer, Words& words) -> Status {
    LOCKSTEP_RETURN_IF_ERROR(wait(*words.nonce_received, Waiting::For::kReceive, peer));
    LOCKSTEP_RETURN_IF_ERROR(wait(*words.nonce_sent, Waiting::For::kSend, peer));
    words.proof_out = AsBytes(ProofOf(key, index(), peer, words.nonce_in));
    words.proof_sent = MakeBuffer(words.proof_out.data(), wire::kTagBytes);
    words.proof_sent->send(peer, kIntroduction);
    return OkStatus();
  }));
  return for_all([&](int peer, Words& words) -> Status {
    LOCKSTEP_RETURN_IF_ERROR(wait(*words.proof_received, Waiting::For::kReceive, peer));
    LOCKSTEP_RETURN_IF_ERROR(wait(*words.proof_sent, Waiting::For::kSend, peer));
    Digest proof;
    std::memcpy(proof.data(), words.proof_in.data(), proof.size());
    if (SameDigest(proof, ProofOf(key, peer, index(), mine))) return OkStatus();
    return FailedPrecondition(StrCat("rank ", options_.ranks[index()], ": who connected as rank ", options_.ranks[peer],
                                     " does not know the key of this job"));
  });
}

std::unique_ptr<Buffer> Streams::MakeBuffer(void* data, int64_t bytes) {
  return engine_->context->createUnboundBuffer(data, static_cast<size_t>(bytes));
}

Status Streams::OpenWindows(int peer) {
  return Guarded(peer, [&] {
    for (Peer::Window& window : peers_[peer]->out) {
      window.memory.resize(kWindowBytes);
      window.buffer = MakeBuffer(window.memory.data(), kWindowBytes);
    }
    for (Peer::Window& window : peers_[peer]->in) {
      window.memory.resize(kWindowBytes);
      window.buffer = MakeBuffer(window.memory.data(), kWindowBytes);
      window.buffer->recv(peer, kMessages);
    }
  });
}

Status Streams::Wait(Buffer& buffer, bool for_send, int peer, double timeout_s) {
  if (!peers_[peer]->lost.empty()) return Break(Lost(peer, peers_[peer]->lost));
  if (!waiting_->Begin(&buffer, for_send ? Waiting::For::kSend : Waiting::For::kReceive, peer, timeout_s)) {
    return waiting_->error();
  }
  std::string words;
  try {
    (void)(for_send ? buffer.waitSend() : buffer.waitRecv());  // false: Break ended it, which is seen below
  } catch (const std::exception& error) {
    words = error.what();
  }
  waiting_->End();
  if (!words.empty()) return Break(Lost(peer, words));
  return waiting_->error();
}

Result<char*> Streams::Outgoing(int peer) {
  Peer::Window& window = peers_[peer]->out[peers_[peer]->sent & 1];
  if (window.busy) {
    LOCKSTEP_RETURN_IF_ERROR(Wait(*window.buffer, /*for_send=*/true, peer, options_.stall_timeout_s));
    window.busy = false;
  }
  LOCKSTEP_RETURN_IF_ERROR(waiting_->error());
  return window.memory.data();
}

Status Streams::Send(int peer, int64_t bytes) {
  Peer::Window& window = peers_[peer]->out[peers_[peer]->sent++ & 1];
  window.busy = true;
  return Guarded(peer, [&] { window.buffer->send(peer, kMessages, 0, static_cast<size_t>(bytes)); });
}

Result<const char*> Streams::Await(int peer) {
  Peer::Window& window = peers_[peer]->in[peers_[peer]->awaited++ & 1];
  LOCKSTEP_RETURN_IF_ERROR(Wait(*window.buffer, /*for_send=*/false, peer, options_.stall_timeout_s));
  return window.memory.data();
}

// What came has come, even where its sender is gone by now: that is for the next call to find out.
void Streams::Release(int peer) {
  Peer::Window& window = peers_[peer]->in[peers_[peer]->released++ & 1];
  try {
    const NoBrokenPipes quiet;
    window.buffer->recv(peer, kMessages);
  } catch (const std::exception& error) {
    peers_[peer]->lost = error.what();
  }
}

Status Streams::Post(int peer, void* data, int64_t bytes) {
  return Guarded(peer, [&] {
    peers_[peer]->posted.push_back(MakeBuffer(data, bytes));
    peers_[peer]->posted.back()->recv(peer, kMemory);
  });
}

Status Streams::AwaitPosted(int peer) {
  const Status status = Wait(*peers_[peer]->posted.front(), /*for_send=*/false, peer, options_.stall_timeout_s);
  if (status.ok()) peers_[peer]->posted.pop_front();
  return status;
}

// Gloo's buffers serve both directions and take no const; one that sends is only read.
Status Streams::SendFrom(int peer, const void* data, int64_t bytes) {
  return Guarded(peer, [&] {
    peers_[peer]->sending.push_back(MakeBuffer(const_cast<void*>(data), bytes));
    peers_[peer]->sending.back()->send(peer, kMemory);
  });
}

Status Streams::AwaitSent(int peer) {
  const Status status = Wait(*peers_[peer]->sending.front(), /*for_send=*/true, peer, options_.stall_timeout_s);
  if (status.ok()) peers_[peer]->sending.pop_front();
  return status;
}

// The memory of others must not be written, or read, once an error was returned: whoever gets it gives the memory up.
Status Streams::Forget() {
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (peer == nullptr) continue;
    peer->posted.clear();
    peer->sending.clear();
  }
  return error();
}

Status Streams::Flush(double seconds) {
  const Deadline deadline = Deadline::After(seconds);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == index()) continue;
    for (Peer::Window& window : peers_[peer]->out) {
      if (window.busy) LOCKSTEP_RETURN_IF_ERROR(Wait(*window.buffer, /*for_send=*/true, peer, deadline.Left()));
      window.busy = false;
    }
  }
  return OkStatus();
}

Status Streams::Break(const Status& error) { return waiting_->Break(error); }
bool Streams::broken() const { return !waiting_->error().ok(); }
Status Streams::error() const { return waiting_->error(); }

void Streams::Tick() {
  const std::optional<int> late = waiting_->Late();
  if (!late) return;
  (void)Break(DeadlineExceeded(StrCat("rank ", options_.ranks[index()], ": nothing from rank ", options_.ranks[*late],
                                      " for ", options_.stall_timeout_s, " s in ", Operation())));
}

std::string Streams::Operation() const { return name_.empty() ? std::string(kind_) : StrCat(kind_, " '", name_, "'"); }

}  // namespace lockstep::gloo
