#include "core/comm/gloo/streams.h"

#include <signal.h>

#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include "core/base/mutex.h"
#include "core/base/strings.h"
#include "core/comm/gloo/pair.h"
#include "core/telemetry/lane_counters.h"

// Gloo (tcp transport) has a thread that reads from all connections, into memory prepared by recv, and writes what the
// calling thread could not write at once. Other threads can end its waits (abortWaitRecv). It reports events of a
// connection by exceptions, from waits and from all other calls.
//
// Gloo's own timeouts are of no use here: one that passes ends all connections, with a text that does not name the
// cause. They are set beyond any wait; Tick ends waits instead.

namespace lockstep::gloo {
namespace {

namespace tcp = ::gloo::transport::tcp;

// Messages and memory are separate: each has its own order.
constexpr uint64_t kMessages = 0;
constexpr uint64_t kMemory = 1;

// A message with its seal.
constexpr int64_t kFrameBytes = Seal::kBytes + Streams::kWindowBytes;

constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365);

// Gloo writes to sockets whose other end may be closed, which raises SIGPIPE. While this object lives, the signal is
// blocked in this thread; a signal that came is removed at the end. Threads that start meanwhile block it for ever.
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

std::string OperationText(std::string_view kind, std::string_view name) {
  return name.empty() ? std::string(kind) : StrCat(kind, " '", name, "'");
}

}  // namespace

struct Streams::Engine {
  std::shared_ptr<tcp::Device> device;
  std::shared_ptr<tcp::Context> context;

  Pair& pair(int peer) { return static_cast<Pair&>(*context->getPair(peer)); }
};

struct Streams::Peer {
  Peer(const Digest& key, int self, int peer) : to_peer(SealOf(key, self, peer)), from_peer(SealOf(key, peer, self)) {}

  Seal to_peer, from_peer;
  // A buffer and whether a transfer uses it. Its memory is not cleared: pages that no message has reached take none. A
  // message lies after its seal.
  struct Window {
    std::unique_ptr<char[]> memory;
    std::unique_ptr<Memory> buffer;
    bool busy = false;
  };
  std::array<Window, 2> out, in;
  // The numbers of messages that were begun, awaited and released: their parity selects the window.
  int64_t sent = 0, awaited = 0, released = 0;
  std::deque<std::unique_ptr<Memory>> posted, sending;
  std::string lost;  // how the connection ended, if that was seen and is not yet an error
};

// The current wait, if any, and the end of the streams.
class Streams::Waiting {
 public:
  enum class For { kReceive, kSend };

  // Returns false if it is already broken. kind and name have to live until End.
  bool Begin(Memory* buffer, For what, int peer, double timeout_s, std::string_view kind, std::string_view name) {
    const MutexLock lock(mutex_);
    if (!error_.ok()) return false;
    current_ = buffer;
    what_ = what;
    peer_ = peer;
    kind_ = kind;
    name_ = name;
    deadline_.emplace(Deadline::After(timeout_s));
    return true;
  }
  void End() {
    const MutexLock lock(mutex_);
    current_ = nullptr;
    deadline_.reset();
  }
  Status Break(const Status& error) {
    const MutexLock lock(mutex_);
    if (!error_.ok()) return error_;
    error_ = error;
    if (current_ != nullptr) what_ == For::kReceive ? current_->abortWaitRecv() : current_->abortWaitSend();
    return error_;
  }
  Status error() const {
    const MutexLock lock(mutex_);
    return error_;
  }
  // The peer that did not send or receive in time, and the operation that waits for it.
  struct Late {
    int peer;
    std::string operation;
  };
  std::optional<Late> FindLate() const {
    const MutexLock lock(mutex_);
    if (current_ == nullptr || !deadline_->Passed()) return std::nullopt;
    return Late{peer_, OperationText(kind_, name_)};
  }

 private:
  mutable Mutex mutex_;
  Memory* current_ LOCKSTEP_GUARDED_BY(mutex_) = nullptr;
  For what_ LOCKSTEP_GUARDED_BY(mutex_) = For::kReceive;
  int peer_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  // The operation that waits.
  std::string_view kind_ LOCKSTEP_GUARDED_BY(mutex_), name_ LOCKSTEP_GUARDED_BY(mutex_);
  std::optional<Deadline> deadline_ LOCKSTEP_GUARDED_BY(mutex_);
  Status error_ LOCKSTEP_GUARDED_BY(mutex_);
};

Streams::Streams(StreamsOptions options, Introductions introductions)
    : options_(std::move(options)),
      introductions_(std::move(introductions)),
      engine_(std::make_unique<Engine>()),
      peers_(options_.ranks.size()),
      waiting_(std::make_unique<Waiting>()) {}

// Buffers are destroyed before the connections that they belong to. A fork does not have Gloo's thread, so it cannot
// wait for it. The parent's thread still uses its own memory, so the fork's copy is not freed.
Streams::~Streams() {
  if (fork_.InFork()) {
    for (std::unique_ptr<Peer>& peer : peers_) (void)peer.release();
    (void)engine_.release();
    return;
  }
  (void)Break(Cancelled("the communicator was destroyed"));
  peers_.clear();
  engine_->context.reset();
  engine_->device.reset();
}

Result<std::unique_ptr<Streams>> Streams::Listen(StreamsOptions options) {
  LOCKSTEP_ASSIGN_OR_RETURN(Introductions introductions,
                            Introductions::Listen(options.address, StrCat("rank ", options.ranks[options.index])));
  std::unique_ptr<Streams> streams(new Streams(std::move(options), std::move(introductions)));
  LOCKSTEP_RETURN_IF_ERROR(streams->StartEngine());
  return streams;
}

// A device has an address at which its pairs listen until they have adopted a socket. They never accept a connection.
// Therefore it is the loopback, where no other machine can connect. The other address is for a machine whose loopback
// is down.
Status Streams::StartEngine() {
  std::string words;
  for (const std::string& address : {std::string("127.0.0.1"), options_.address}) {
    try {
      const NoBrokenPipes quiet;
      tcp::attr where;
      where.hostname = address;
      engine_->device = std::make_shared<tcp::Device>(tcp::CreateDeviceAttr(where));
      engine_->context = std::make_shared<tcp::Context>(engine_->device, options_.index, size());
      engine_->context->setTimeout(kForever);
      return OkStatus();
    } catch (const std::exception& error) {
      words = error.what();
    }
  }
  return Unavailable(
      StrCat("rank ", options_.ranks[index()], ": Gloo cannot begin at '", options_.address, "': ", words));
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
                            ") while rank ", options_.ranks[index()], " waited for it in ", Operation()));
}

Status Streams::Connect(const std::vector<std::string>& theirs, const Digest& key, const Deadline& deadline) {
  kind_ = "start of the job";
  Result<std::vector<UniqueFd>> sockets =
      introductions_.Connect(index(), options_.ranks, theirs, key, deadline, [this] { return error(); });
  if (!sockets.ok()) return Break(sockets.status());
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == index()) continue;
    peers_[peer] = std::make_unique<Peer>(key, options_.ranks[index()], options_.ranks[peer]);
    LOCKSTEP_RETURN_IF_ERROR(Guarded(peer, [&] {
      engine_->context->getPair(peer) = std::make_unique<Pair>(*engine_->context, *engine_->device, peer);
      engine_->pair(peer).Adopt(std::move((*sockets)[peer]));
    }));
    LOCKSTEP_RETURN_IF_ERROR(OpenWindows(peer));
  }
  return OkStatus();
}

std::unique_ptr<Memory> Streams::MakeBuffer(void* data, int64_t bytes) {
  return std::make_unique<Memory>(engine_->context, data, static_cast<size_t>(bytes));
}

Status Streams::OpenWindows(int peer) {
  return Guarded(peer, [&] {
    for (Peer::Window& window : peers_[peer]->out) {
      window.memory = std::make_unique_for_overwrite<char[]>(kFrameBytes);
      window.buffer = MakeBuffer(window.memory.get(), kFrameBytes);
    }
    for (Peer::Window& window : peers_[peer]->in) {
      window.memory = std::make_unique_for_overwrite<char[]>(kFrameBytes);
      window.buffer = MakeBuffer(window.memory.get(), kFrameBytes);
      window.buffer->recv(peer, kMessages, 0, kFrameBytes);
    }
  });
}

Status Streams::Wait(Memory& buffer, bool for_send, int peer, double timeout_s) {
  if (!peers_[peer]->lost.empty()) return Break(Lost(peer, peers_[peer]->lost));
  const Waiting::For what = for_send ? Waiting::For::kSend : Waiting::For::kReceive;
  if (!waiting_->Begin(&buffer, what, peer, timeout_s, kind_, name_)) return waiting_->error();
  std::string words;
  try {
    // False means that Break ended it, which is seen below.
    (void)(for_send ? buffer.waitSend(nullptr, kForever) : buffer.waitRecv(nullptr, kForever));
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
  return window.memory.get() + Seal::kBytes;
}

Status Streams::Send(int peer, int64_t bytes) {
  Peer::Window& window = peers_[peer]->out[peers_[peer]->sent++ & 1];
  window.busy = true;
  if (counters_ != nullptr) counters_->AddSentMessage(Seal::kBytes + bytes);
  return Guarded(peer, [&] {
    peers_[peer]->to_peer.Close(window.memory.get(), bytes);
    window.buffer->send(peer, kMessages, 0, static_cast<size_t>(Seal::kBytes + bytes));
  });
}

Result<std::string_view> Streams::Await(int peer) {
  Peer::Window& window = peers_[peer]->in[peers_[peer]->awaited++ & 1];
  LOCKSTEP_RETURN_IF_ERROR(Wait(*window.buffer, /*for_send=*/false, peer, options_.stall_timeout_s));
  Seal& seal = peers_[peer]->from_peer;
  const std::optional<std::string_view> message = seal.Open(window.memory.get(), kWindowBytes);
  if (message) return *message;
  return Break(DataLoss(StrCat("rank ", options_.ranks[index()], ": message ", seal.count(), " from rank ",
                               options_.ranks[peer], " is not what that rank sent, in ", Operation(),
                               "; it was damaged, repeated or forged on its way")));
}

// A message that has arrived stays valid, even if its sender is gone by now; the next call notices that.
void Streams::Release(int peer) {
  Peer::Window& window = peers_[peer]->in[peers_[peer]->released++ & 1];
  try {
    const NoBrokenPipes quiet;
    window.buffer->recv(peer, kMessages, 0, kFrameBytes);
  } catch (const std::exception& error) {
    peers_[peer]->lost = error.what();
  }
}

Status Streams::Post(int peer, void* data, int64_t bytes) {
  return Guarded(peer, [&] {
    peers_[peer]->posted.push_back(MakeBuffer(data, bytes));
    peers_[peer]->posted.back()->recv(peer, kMemory, 0, static_cast<size_t>(bytes));
  });
}

Status Streams::AwaitPosted(int peer) {
  const Status status = Wait(*peers_[peer]->posted.front(), /*for_send=*/false, peer, options_.stall_timeout_s);
  if (!status.ok()) return status;
  if (counters_ != nullptr) counters_->AddReceivedMessage(static_cast<int64_t>(peers_[peer]->posted.front()->size));
  peers_[peer]->posted.pop_front();
  return status;
}

// Gloo's buffers serve both directions and take no const pointers; a buffer that sends is only read.
Status Streams::SendFrom(int peer, const void* data, int64_t bytes) {
  if (counters_ != nullptr) counters_->AddSentMessage(bytes);
  return Guarded(peer, [&] {
    peers_[peer]->sending.push_back(MakeBuffer(const_cast<void*>(data), bytes));
    peers_[peer]->sending.back()->send(peer, kMemory, 0, static_cast<size_t>(bytes));
  });
}

Status Streams::AwaitSent(int peer) {
  const Status status = Wait(*peers_[peer]->sending.front(), /*for_send=*/true, peer, options_.stall_timeout_s);
  if (status.ok()) peers_[peer]->sending.pop_front();
  return status;
}

// After an error is returned, the memory of callers must not be read or written: a caller that gets the error frees it.
// Transfers from or to it never finish.
Status Streams::Forget() {
  for (int i = 0; i < size(); ++i) {
    Peer* const peer = peers_[i].get();
    if (peer == nullptr || (peer->posted.empty() && peer->sending.empty())) continue;
    try {
      engine_->pair(i).Rest();
    } catch (const std::exception& error) {
      // The connection stays as it is; Gloo's thread is kept busy by it until the end.
    }
    peer->posted.clear();
    peer->sending.clear();
  }
  return error();
}

Status Streams::Flush(double seconds) {
  // The last operation is over, and its name may be destroyed.
  SetOperation("end of the job", {});
  const Deadline deadline = Deadline::After(seconds);
  for (int peer = 0; peer < size(); ++peer) {
    if (peers_[peer] == nullptr) continue;
    for (Peer::Window& window : peers_[peer]->out) {
      if (window.busy) LOCKSTEP_RETURN_IF_ERROR(Wait(*window.buffer, /*for_send=*/true, peer, deadline.Left()));
      window.busy = false;
    }
  }
  // It is not enough that the kernel has the data: if input is unread, the kernel drops data that the peer has not
  // received. The kernel does not notify of this, hence the polling.
  for (int peer = 0; peer < size(); ++peer) {
    if (peers_[peer] == nullptr) continue;
    while (!engine_->pair(peer).Acknowledged() && !deadline.Passed() && !broken()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  return OkStatus();
}

Status Streams::Break(const Status& error) { return waiting_->Break(error); }
bool Streams::broken() const { return !waiting_->error().ok(); }
Status Streams::error() const { return waiting_->error(); }

void Streams::Tick() {
  const std::optional<Waiting::Late> late = waiting_->FindLate();
  if (!late) return;
  (void)Break(
      DeadlineExceeded(StrCat("rank ", options_.ranks[index()], ": nothing from rank ", options_.ranks[late->peer],
                              " for ", options_.stall_timeout_s, " s in ", late->operation)));
}

std::string Streams::Operation() const { return OperationText(kind_, name_); }

}  // namespace lockstep::gloo
