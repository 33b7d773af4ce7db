#include "core/comm/liveness/watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <list>
#include <optional>
#include <thread>
#include <utility>

#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "core/base/strings.h"
#include "core/comm/liveness/watch_link.h"
#include "core/comm/liveness/watch_wire.h"

// The thread's loop sends messages of callers and beats that are due, waits for at most 0.1 s, reads, checks for silent
// ranks, and ticks. All sockets belong to it. Callers only change data under the mutex, and wake it.
//
// Rank 0 tells all ranks of an end before its own verdict's callback, which may take time. The others tell rank 0.
//
// Silence is measured on a separate clock, which advances by at most beat_s in each turn. A thread that did not run did
// not listen either, and the others must not be blamed for what it missed.

namespace lockstep {
namespace {

using watch::Link;
using watch::Message;

// The longest time between two ticks is 0.1 s, including the time of a turn.
constexpr double kTick_s = 0.09;
// The interval at which a leaving rank checks whether the others' machines have its farewell: the kernel does not
// notify.
constexpr double kLeaveLook_s = 0.002;
// The most messages that are read from one rank before the others have their turn.
constexpr int kTurnMessages = 64;

// The watch whose thread this is, if any.
thread_local const void* t_watch = nullptr;

}  // namespace

class Watch::Impl {
 public:
  Impl(WatchOptions options, std::vector<UniqueFd> connections, std::function<void(const Status&)> on_verdict,
       std::function<void()> on_tick)
      : options_(std::move(options)),
        on_verdict_(std::move(on_verdict)),
        on_tick_(std::move(on_tick)),
        fates_(options_.size, Fate::kRunning),
        farewells_(options_.size),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    for (size_t rank = 0; rank < connections.size(); ++rank) {
      if (!connections[rank].valid()) continue;
      links_.emplace_back(options_.key, options_.rank, static_cast<int>(rank), std::move(connections[rank]));
    }
    thread_ = std::thread([this] { Run(); });
  }

  ~Impl() {
    Leave({});
    {
      const MutexLock lock(mutex_);
      stop_ = true;
    }
    Wake();
    thread_.join();
  }

  void ReportError(const Status& why) {
    {
      const MutexLock lock(mutex_);
      if (why.ok() || !verdict_.ok() || leaving_ || fates_[options_.rank] != Fate::kRunning) return;
      fates_[options_.rank] = Fate::kLost;
      gave_up_ = true;
      unsent_error_ = watch::Cut(why, watch::kMaxWordsBytes);
      changed_.NotifyAll();
    }
    Wake();
  }

  void Leave(std::string_view how) {
    {
      const MutexLock lock(mutex_);
      if (!leaving_) farewells_[options_.rank] = how;
      leaving_ = true;
    }
    Wake();
    WaitUntil(options_.leave_s, [this]() LOCKSTEP_REQUIRES(mutex_) { return left_; });
  }

  Fate fate(int rank) const {
    const MutexLock lock(mutex_);
    return fates_[rank];
  }

  std::string farewell(int rank) const {
    const MutexLock lock(mutex_);
    return farewells_[rank];
  }

  Status verdict() const {
    const MutexLock lock(mutex_);
    return verdict_;
  }

  void AwaitFate(int rank, double seconds) {
    WaitUntil(seconds, [&]() LOCKSTEP_REQUIRES(mutex_) {
      const bool blind = leaving_ || (options_.rank != 0 && fates_[0] == Fate::kLeft);
      // If a rank is lost for another reason than this rank's own error, the verdict follows.
      return blind || !verdict_.ok() || fates_[rank] == Fate::kLeft || gave_up_;
    });
  }

 private:
  using Clock = Deadline::Clock;

  // Calls `done` with the mutex held. The watch's own thread never waits.
  template <typename Done>
  void WaitUntil(double seconds, Done done) LOCKSTEP_EXCLUDES(mutex_) {
    if (t_watch == this) return;
    constexpr double kMost_s = 1e6;
    const auto end = Clock::now() + std::chrono::duration<double>(std::clamp(seconds, 0.0, kMost_s));
    const MutexLock lock(mutex_);
    while (!done() && changed_.WaitUntil(mutex_, end)) {
    }
  }

  void Wake() {
    const uint64_t one = 1;
    // Without a descriptor the thread sees it at its next turn; a full eventfd already has enough wake-ups.
    [[maybe_unused]] const ssize_t n = write(wake_.get(), &one, sizeof(one));
  }

  // --- the rest runs on the thread ---

  void Run() {
    t_watch = this;
    Clock::time_point last = Clock::now();
    double since_beat_s = options_.beat_s;
    while (RunRequests()) {
      if (since_beat_s >= options_.beat_s) {
        SendBeats();
        since_beat_s = 0;
      }
      for (Link& link : links_) link.Flush();
      Poll(leave_deadline_ && !closed_ ? kLeaveLook_s : std::min(kTick_s, options_.beat_s - since_beat_s));
      for (Link& link : links_) Listen(link);
      const Clock::time_point now = Clock::now();
      const double turn_s = std::chrono::duration<double>(now - last).count();
      last = now;
      since_beat_s += turn_s;
      clock_s_ += std::min(turn_s, std::max(options_.beat_s, kTick_s));
      for (Link& link : links_) LookForSilence(link);
      if (on_tick_) on_tick_();
    }
  }

  // Sends the messages of callers. Returns false at the end.
  bool RunRequests() {
    std::optional<Status> words;
    bool leaving;
    std::string how;
    {
      const MutexLock lock(mutex_);
      if (stop_) return false;
      words.swap(unsent_error_);
      leaving = leaving_;
      how = farewells_[options_.rank];
    }
    if (words) {
      const Status status = options_.rank == 0 ? GaveUp(0, *words) : *words;
      Tell({Message::Kind::kEnd, static_cast<uint32_t>(options_.rank), status});
    }
    if (leaving && !leave_deadline_) {
      leave_deadline_ = Deadline::After(options_.leave_s);
      // After an error message it is nothing new to ranks that have read that. But a rank that has itself ended may
      // live on for a while, and must not conclude that this rank died.
      const Message farewell = {Message::Kind::kLeft, static_cast<uint32_t>(options_.rank),
                                how.empty() ? OkStatus() : watch::Cut(Cancelled(how), watch::kMaxWordsBytes)};
      for (Link& link : links_) link.Send(farewell);
      (void)Learn(options_.rank, Fate::kLeft, OkStatus());
    }
    if (leave_deadline_ && !closed_) EndLeave();
    return true;
  }

  // Closes the connections when all living peers have received everything, or the time has passed. (If input is unread,
  // close drops data that the peer's machine has not received, and resets the connection. So it is not enough that the
  // kernel has the data.)
  void EndLeave() {
    if (!leave_deadline_->Passed()) {
      for (const Link& link : links_) {
        if (!link.over && !link.Acknowledged()) return;
      }
    }
    for (Link& link : links_) {
      link.over = true;
      link.Close();
    }
    closed_ = true;
    const MutexLock lock(mutex_);
    left_ = true;
    changed_.NotifyAll();
  }

  // A rank that was given up gets beats too, so that it does not find us silent while it reads the reason. If the last
  // beat has not left yet, another one would add nothing.
  void SendBeats() {
    for (Link& link : links_) {
      if (link.flushed()) link.Send({Message::Kind::kBeat, 0, OkStatus()});
    }
  }

  // Sends to all living ranks, and to the rank that the message is about, in case it was only frozen; but no rank gets
  // its own message.
  void Tell(const Message& message, bool own_words = false) {
    for (Link& link : links_) {
      const bool about = link.rank() == static_cast<int>(message.rank);
      if (about ? !own_words : !link.over) link.Send(message);
    }
  }

  void Poll(double seconds) {
    polled_.clear();
    polled_.push_back({wake_.get(), POLLIN, 0});
    for (const Link& link : links_) {
      const short events = static_cast<short>((link.over ? 0 : POLLIN) | (link.flushed() ? 0 : POLLOUT));
      // Without events the kernel would still report a connection's end, again and again.
      const std::optional<int> socket = events == 0 ? std::nullopt : link.socket();
      polled_.push_back({socket.value_or(UniqueFd::kNone), events, 0});
    }
    poll(polled_.data(), polled_.size(), Deadline::After(seconds).PollMs());
    uint64_t count;
    // There may be nothing to read.
    [[maybe_unused]] const ssize_t n = read(wake_.get(), &count, sizeof(count));
  }

  void Listen(Link& link) {
    for (int i = 0; i < kTurnMessages && !link.over; ++i) {
      const auto message = link.Receive();
      if (!message.ok()) return Lose(link, HowLost(link, message.status()));
      if (!message->has_value()) return;
      if (!IsAllowed(link, **message))
        return Lose(link, HowLost(link, DataLoss("a message that this rank must not send")));
      link.heard_s = clock_s_;
      Hear(link, **message);
    }
  }

  Status HowLost(Link& link, const Status& why) const {
    if (why.code() == StatusCode::kDataLoss)
      return why.WithPrefix(StrCat("forged or damaged messages from ", Place(link.rank()), ": "));
    link.Close();
    return Unavailable(StrCat(Place(link.rank()), " died: ", why.message(), " without a farewell"));
  }

  bool IsAllowed(const Link& link, const Message& message) const {
    if (message.kind == Message::Kind::kBeat) return true;
    return link.rank() == 0 ? message.rank < static_cast<uint32_t>(options_.size)
                            : message.rank == static_cast<uint32_t>(link.rank());
  }

  void Hear(Link& link, const Message& message) {
    if (message.kind == Message::Kind::kBeat) return;
    const int rank = static_cast<int>(message.rank);
    if (rank == link.rank()) link.over = true;
    if (message.kind == Message::Kind::kLeft) {
      {
        const MutexLock lock(mutex_);
        farewells_[rank] = message.status.message();
      }
      (void)Learn(rank, Fate::kLeft, OkStatus());
      if (options_.rank == 0) Tell(message, /*own_words=*/true);
      if (rank == link.rank()) link.Close();
      return;
    }
    // Rank 0's messages already name the rank that sent them.
    const Status why = options_.rank == 0 ? GaveUp(rank, message.status) : message.status;
    const bool is_verdict = Learn(rank, Fate::kLost, why);
    if (options_.rank == 0) Tell({message.kind, message.rank, why}, /*own_words=*/true);
    Report(why, is_verdict);
  }

  // Handles a loss that is seen here: the rank at the other end is lost. Rank 0 tells all; another rank tells rank 0.
  void Lose(Link& link, const Status& why) {
    link.over = true;
    if (leave_deadline_) return;
    const bool is_verdict = Learn(link.rank(), Fate::kLost, why);
    if (options_.rank == 0) {
      Tell({Message::Kind::kEnd, static_cast<uint32_t>(link.rank()), why});
    } else {
      link.Send({Message::Kind::kEnd, static_cast<uint32_t>(options_.rank), why});
    }
    Report(why, is_verdict);
  }

  void Report(const Status& why, bool is_verdict) {
    const bool is_loss = !leave_deadline_ && why.code() != StatusCode::kCancelled;
    if (is_loss && options_.on_loss) options_.on_loss(why);
    if (is_verdict && on_verdict_) on_verdict_(why);
  }

  void LookForSilence(Link& link) {
    if (link.over || clock_s_ - link.heard_s <= options_.silence_s) return;
    Lose(link, Unavailable(StrCat(Place(link.rank()), " has been silent for ", options_.silence_s,
                                  " s: cut off from the network, or frozen")));
  }

  // Sets a rank's fate and, if `end` is an error, the verdict, in one step: a thread that is woken by one also finds
  // the other. Returns true if `end` becomes the verdict.
  bool Learn(int rank, Fate fate, const Status& end) {
    const MutexLock lock(mutex_);
    if (fates_[rank] == Fate::kRunning) fates_[rank] = fate;
    const bool is_verdict = !end.ok() && verdict_.ok() && !leaving_;
    if (is_verdict) verdict_ = end;
    changed_.NotifyAll();
    return is_verdict;
  }

  Status GaveUp(int rank, const Status& words) const {
    return watch::Cut(words.WithPrefix(StrCat(Place(rank), " gave up: ")), watch::kMaxTextBytes);
  }

  std::string Place(int rank) const {
    const bool named = static_cast<size_t>(rank) < options_.places.size();
    return named ? options_.places[rank] : StrCat("rank ", rank);
  }

  const WatchOptions options_;
  const std::function<void(const Status&)> on_verdict_;
  const std::function<void()> on_tick_;

  // Used only by the thread.
  std::list<Link> links_;
  std::vector<pollfd> polled_;
  double clock_s_ = 0;  // the clock of silence
  std::optional<Deadline> leave_deadline_;
  bool closed_ = false;  // all connections, after leaving

  mutable Mutex mutex_;
  CondVar changed_;                                      // signals changes of the guarded data
  std::vector<Fate> fates_ LOCKSTEP_GUARDED_BY(mutex_);  // [R]
  std::vector<std::string> farewells_ LOCKSTEP_GUARDED_BY(mutex_);
  Status verdict_ LOCKSTEP_GUARDED_BY(mutex_);
  std::optional<Status> unsent_error_ LOCKSTEP_GUARDED_BY(mutex_);  // not yet sent
  bool gave_up_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  bool leaving_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  bool left_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  bool stop_ LOCKSTEP_GUARDED_BY(mutex_) = false;

  const UniqueFd wake_;  // an eventfd
  std::thread thread_;
};

Watch::Watch(WatchOptions options, std::vector<UniqueFd> connections, std::function<void(const Status&)> on_verdict,
             std::function<void()> on_tick)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(connections), std::move(on_verdict),
                                   std::move(on_tick))) {}

// A fork has no thread to wait for, and the thread that held the mutex may be gone: the memory is not freed.
Watch::~Watch() {
  if (guard_.InFork()) (void)impl_.release();
}

void Watch::ReportError(const Status& why) {
  if (!guard_.InFork()) impl_->ReportError(why);
}

void Watch::Leave(std::string_view how) {
  if (!guard_.InFork()) impl_->Leave(how);
}

std::string Watch::farewell(int rank) const { return guard_.InFork() ? "" : impl_->farewell(rank); }

Watch::Fate Watch::fate(int rank) const { return guard_.InFork() ? Fate::kRunning : impl_->fate(rank); }

Status Watch::verdict() const { return guard_.InFork() ? OkStatus() : impl_->verdict(); }

void Watch::AwaitFate(int rank, double seconds) {
  if (!guard_.InFork()) impl_->AwaitFate(rank, seconds);
}

}  // namespace lockstep
