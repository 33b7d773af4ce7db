// Promise of this file (security.md): streams refuse unauthenticated connections and malformed messages.
// Promise of this file (security.md): messages that were changed, repeated, left out or reflected are found.

#include "core/comm/gloo/streams.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/seal.h"
#include "core/base/strings.h"
#include "core/comm/gloo/pair.h"
#include "core/comm/rendezvous/rendezvous_wire.h"
#include "core/testing/ranks.h"

// Tests streams with each other, and with a faulty peer that knows the key.

namespace lockstep::gloo {
namespace {

using Op = ::gloo::transport::tcp::Op;

constexpr double kSoon_s = 60;
// The time in which an end has to be noticed without a timeout, even on a busy machine.
constexpr double kAtOnce_s = kSoon_s / 2;
constexpr int64_t kFrameBytes = Seal::kBytes + Streams::kWindowBytes;

std::unique_ptr<Streams> Listen(int index, int size, double stall_s = kSoon_s) {
  std::vector<int> ranks;
  for (int i = 0; i < size; ++i) ranks.push_back(10 * i);
  Result<std::unique_ptr<Streams>> made =
      Streams::Listen({.index = index, .ranks = ranks, .address = "127.0.0.1", .stall_timeout_s = stall_s});
  EXPECT_TRUE(made.ok()) << made.status().ToString();
  return *std::move(made);
}

std::vector<std::unique_ptr<Streams>> Connected(int size, double stall_s = kSoon_s) {
  std::vector<std::unique_ptr<Streams>> all;
  std::vector<std::string> addresses;
  for (int i = 0; i < size; ++i) {
    all.push_back(Listen(i, size, stall_s));
    addresses.push_back(all.back()->address());
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < size; ++i) {
    threads.emplace_back(
        [&, i] { EXPECT_EQ(all[i]->Connect(addresses, Sha256("key"), Deadline::After(kSoon_s)), OkStatus()); });
  }
  for (std::thread& thread : threads) thread.join();
  return all;
}

// Rank 0's streams, and the other end of its connection to rank 10, which the test writes itself.
struct WithLiar {
  explicit WithLiar(double stall_s = kSoon_s) : streams(Listen(0, 2, stall_s)) {
    Result<Introductions> own = Introductions::Listen("127.0.0.1", "rank 10");
    EXPECT_TRUE(own.ok());
    const std::vector<int> ranks = {0, 10};
    const std::vector<std::string> addresses = {streams->address(), own->address()};
    std::thread connects(
        [&] { EXPECT_EQ(streams->Connect(addresses, Sha256("key"), Deadline::After(kSoon_s)), OkStatus()); });
    auto sockets = own->Connect(1, ranks, addresses, Sha256("key"), Deadline::After(kSoon_s), nullptr);
    connects.join();
    EXPECT_TRUE(sockets.ok()) << sockets.status().ToString();
    liar = std::move((*sockets)[0]);
  }
  void Say(std::string_view bytes) { (void)wire::SendAll(liar.get(), bytes, Deadline::After(kSoon_s)); }
  void Say(size_t opcode, size_t slot, size_t length, size_t nbytes = sizeof(Op::preamble)) {
    Op op;
    op.preamble.nbytes = nbytes;
    op.preamble.opcode = opcode;
    op.preamble.slot = slot;
    op.preamble.length = length;
    Say({reinterpret_cast<const char*>(&op.preamble), sizeof(op.preamble)});
  }
  // Returns the next message of rank 10 as it does on its way.
  std::string Sealed(std::string_view message) {
    std::string frame(Seal::kBytes, '\0');
    frame += message;
    seal.Close(frame.data(), static_cast<int64_t>(message.size()));
    return frame;
  }
  void SayMessage(std::string_view frame) {
    Say(Op::NOTIFY_SEND_READY, 0, frame.size());
    Say(Op::SEND_UNBOUND_BUFFER, 0, frame.size());
    Say(frame);
  }

  std::unique_ptr<Streams> streams;
  UniqueFd liar;
  Seal seal = Streams::SealOf(Sha256("key"), 10, 0);
};

std::string Pattern(size_t bytes, int seed) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 31 + i / 251 + seed);
  return text;
}

void SendText(Streams& streams, int peer, const std::string& text) {
  const Result<char*> window = streams.Outgoing(peer);
  ASSERT_TRUE(window.ok()) << window.status().ToString();
  std::memcpy(*window, text.data(), text.size());
  ASSERT_EQ(streams.Send(peer, static_cast<int64_t>(text.size())), OkStatus());
}

void ExpectText(Streams& streams, int peer, const std::string& text) {
  const Result<std::string_view> message = streams.Await(peer);
  ASSERT_TRUE(message.ok()) << message.status().ToString();
  EXPECT_EQ(*message, text);
  streams.Release(peer);
}

TEST(StreamsTest, MessagesAndMemoryArriveInTheirOrder) {
  auto all = Connected(3);
  std::vector<std::thread> threads;
  for (int me = 0; me < 3; ++me) {
    threads.emplace_back([&, me] {
      Streams& own = *all[me];
      constexpr int kRounds = 20;
      const std::string large = Pattern(3 << 20, me);
      std::vector<std::string> got(3, std::string(large.size(), '\0'));
      for (int round = 0; round < kRounds; ++round) {
        for (int peer = 0; peer < 3; ++peer) {
          if (peer == me) continue;
          SendText(own, peer, StrCat(me, " to ", peer, ", ", round));
          if (round % 5 != 0) continue;
          ASSERT_EQ(own.Post(peer, got[peer].data(), static_cast<int64_t>(large.size())), OkStatus());
          ASSERT_EQ(own.SendFrom(peer, large.data(), static_cast<int64_t>(large.size())), OkStatus());
        }
        for (int peer = 0; peer < 3; ++peer) {
          if (peer == me) continue;
          ExpectText(own, peer, StrCat(peer, " to ", me, ", ", round));
          if (round % 5 != 0) continue;
          ASSERT_EQ(own.AwaitPosted(peer), OkStatus());
          ASSERT_EQ(own.AwaitSent(peer), OkStatus());
          EXPECT_EQ(got[peer], Pattern(large.size(), peer));
        }
      }
      EXPECT_EQ(own.Flush(kSoon_s), OkStatus());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(StreamsTest, WhatWasSentBeforeTheEndArrives) {
  auto all = Connected(2);
  SendText(*all[0], 1, "first");
  SendText(*all[0], 1, "last");
  EXPECT_EQ(all[0]->Flush(kSoon_s), OkStatus());
  all[0].reset();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  ExpectText(*all[1], 0, "first");
  const Result<std::string_view> last = all[1]->Await(0);
  // The connection's end may have been seen with the first message, whose window could then not be released.
  if (last.ok()) {
    EXPECT_EQ(*last, "last");
  } else {
    EXPECT_EQ(last.status().code(), StatusCode::kUnavailable);
  }
}

TEST(StreamsTest, APeerThatClosesIsNoticedAtOnceInEveryWait) {
  using Wait = std::function<Status(Streams&, std::vector<char>&)>;
  const std::vector<Wait> waits = {
      [](Streams& s, std::vector<char>&) { return s.Await(1).status(); },
      [](Streams& s, std::vector<char>& memory) {
        const Status status = s.Post(1, memory.data(), static_cast<int64_t>(memory.size()));
        return status.ok() ? s.AwaitPosted(1) : status;
      },
      [](Streams& s, std::vector<char>& memory) {
        const Status status = s.SendFrom(1, memory.data(), static_cast<int64_t>(memory.size()));
        return status.ok() ? s.AwaitSent(1) : status;
      },
      [](Streams& s, std::vector<char>&) {
        Status status;
        for (int i = 0; i < 4 && status.ok(); ++i) {
          status = s.Outgoing(1).status();
          if (status.ok()) status = s.Send(1, Streams::kWindowBytes);
        }
        return status;
      }};
  for (size_t i = 0; i < waits.size(); ++i) {
    for (const bool later : {false, true}) {
      WithLiar with;
      with.streams->SetOperation("allreduce", "x");
      std::vector<char> memory(32 << 20);
      std::thread closes([&] {
        if (later) std::this_thread::sleep_for(std::chrono::milliseconds(100));
        with.liar = {};
      });
      const Deadline since = Deadline::After(kSoon_s);
      const Status status = waits[i](*with.streams, memory);
      EXPECT_EQ(status.code(), StatusCode::kUnavailable) << i << ": " << status.ToString();
      EXPECT_NE(status.message().find("rank 0: the connection to rank 10 ended"), std::string::npos)
          << status.message();
      EXPECT_NE(status.message().find("allreduce 'x'"), std::string::npos) << status.message();
      EXPECT_LT(since.Elapsed(), kAtOnce_s) << i;
      EXPECT_EQ(with.streams->Forget(), status);
      EXPECT_EQ(with.streams->Send(1, 1), status);
      closes.join();
    }
  }
}

// Bytes on their way are in no queue of Gloo's; its own pairs forget the waits for them.
TEST(StreamsTest, APeerThatClosesInTheMiddleOfAMessageIsNoticedAtOnce) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{1000}}) {
    WithLiar with;
    with.Say(Op::NOTIFY_SEND_READY, 0, 5000);
    with.Say(Op::SEND_UNBOUND_BUFFER, 0, 5000);
    with.Say(std::string(bytes, 'x'));
    std::thread closes([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      with.liar = {};
    });
    const Deadline since = Deadline::After(kSoon_s);
    EXPECT_EQ(with.streams->Await(1).status().code(), StatusCode::kUnavailable);
    EXPECT_LT(since.Elapsed(), kAtOnce_s);
    closes.join();
  }
}

TEST(StreamsTest, APeerThatReadsNoMoreAndClosesIsNoticedAtOnce) {
  WithLiar with;
  std::vector<char> memory(64 << 20);
  with.Say(Op::NOTIFY_RECV_READY, 1, memory.size());
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ASSERT_EQ(with.streams->SendFrom(1, memory.data(), static_cast<int64_t>(memory.size())), OkStatus());
  std::thread closes([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    with.liar = {};
  });
  const Deadline since = Deadline::After(kSoon_s);
  EXPECT_EQ(with.streams->AwaitSent(1).code(), StatusCode::kUnavailable);
  EXPECT_LT(since.Elapsed(), kAtOnce_s);
  EXPECT_EQ(with.streams->Forget().code(), StatusCode::kUnavailable);
  closes.join();
}

// Gloo reports some invalid input by exceptions on its own thread, which would end the process.
TEST(StreamsTest, WhatNoStreamSaysEndsTheConnectionAndNotTheProcess) {
  const std::vector<std::function<void(WithLiar&)>> lies = {
      [](WithLiar& with) { with.Say(Op::SEND_UNBOUND_BUFFER, 77, 10); },              // an unknown slot
      [](WithLiar& with) { with.Say(Op::SEND_UNBOUND_BUFFER, 0, kFrameBytes + 1); },  // more than fits
      [](WithLiar& with) { with.Say(Op::SEND_UNBOUND_BUFFER, 0, ~size_t{0}); },
      [](WithLiar& with) { with.Say(Op::SEND_BUFFER, 0, 10); },
      [](WithLiar& with) { with.Say(std::string(480, '\0')); },
      [](WithLiar& with) {
        for (int i = 0; i < 3; ++i) with.SayMessage(with.Sealed("x"));  // more messages than windows
      }};
  for (size_t i = 0; i < lies.size(); ++i) {
    WithLiar with;
    lies[i](with);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const Deadline since = Deadline::After(kSoon_s);
    Status status;
    for (int message = 0; message < 3 && status.ok(); ++message) {
      status = with.streams->Await(1).status();
      if (message == 1) with.streams->Release(1);
    }
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << i << ": " << status.ToString();
    EXPECT_LT(since.Elapsed(), kAtOnce_s) << i;
  }
}

// As whoever is inside of the connection could do it.
TEST(StreamsTest, AMessageThatIsChangedOrRepeatedOnItsWayIsRefused) {
  enum class Attack { kNone, kChanged, kRepeated, kReflected, kShort };
  for (const Attack attack : {Attack::kNone, Attack::kChanged, Attack::kRepeated, Attack::kReflected, Attack::kShort}) {
    WithLiar with;
    with.streams->SetOperation("alltoall", "rows");
    const std::string first = with.Sealed("counts");
    std::string second = with.Sealed("5");
    if (attack == Attack::kChanged) second.back() = '6';
    if (attack == Attack::kRepeated) second = first;
    if (attack == Attack::kShort) second.resize(8);
    if (attack == Attack::kReflected) {
      with.seal = Streams::SealOf(Sha256("key"), 0, 10);
      second = with.Sealed("counts");
    }
    with.SayMessage(first);
    with.SayMessage(second);
    ExpectText(*with.streams, 1, "counts");
    const Result<std::string_view> got = with.streams->Await(1);
    if (attack == Attack::kNone) {
      EXPECT_EQ(*got, "5");
      continue;
    }
    EXPECT_EQ(got.status(), DataLoss("rank 0: message 1 from rank 10 is not what that rank sent, in alltoall 'rows'; "
                                     "it was damaged, repeated or forged on its way"))
        << static_cast<int>(attack);
    EXPECT_EQ(with.streams->Await(1).status(), got.status());
  }
}

TEST(StreamsTest, RandomBytesBehindTheProofDoNoHarm) {
  for (int seed = 0; seed < 50; ++seed) {
    WithLiar with;
    std::string bytes = Pattern(48 * 20, seed * 7);
    // Words with a meaning, so that some of the input is accepted.
    for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
      const uint64_t word = (static_cast<unsigned char>(bytes[i]) + seed) % 5;
      std::memcpy(bytes.data() + i, &word, sizeof(word));
    }
    with.Say(bytes);
    with.liar = {};
    Status status;
    for (int message = 0; message < 50 && status.ok(); ++message) {
      status = with.streams->Await(1).status();
      if (status.ok()) with.streams->Release(1);
    }
    // Some bytes look like a message, without a seal.
    EXPECT_TRUE(status.code() == StatusCode::kUnavailable || status.code() == StatusCode::kDataLoss)
        << seed << ": " << status.ToString();
  }
}

TEST(StreamsTest, ALatePeerIsNamedWithTheOperation) {
  WithLiar with(/*stall_s=*/0.2);
  with.streams->SetOperation("alltoall", "rows");
  std::atomic<bool> done = false;
  std::thread ticks([&] {
    while (!done) {
      with.streams->Tick();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  EXPECT_EQ(with.streams->Await(1).status(),
            DeadlineExceeded("rank 0: nothing from rank 10 for 0.2 s in alltoall 'rows'"));
  done = true;
  ticks.join();
}

// The names of operations live as long as their calls, and ticks come at any time.
TEST(StreamsTest, TicksDisturbNobodyWhoIsInTime) {
  auto all = Connected(2);
  std::atomic<bool> done = false;
  std::thread ticks([&] {
    while (!done) {
      for (auto& streams : all) streams->Tick();
    }
  });
  std::vector<std::thread> threads;
  for (int me = 0; me < 2; ++me) {
    threads.emplace_back([&, me] {
      for (int i = 0; i < 300; ++i) {
        const std::string name = StrCat("operation ", i, " of a rank that has a long name");
        all[me]->SetOperation("barrier", name);
        SendText(*all[me], 1 - me, name);
        ExpectText(*all[me], 1 - me, name);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  done = true;
  ticks.join();
}

TEST(StreamsTest, AnEndFromAnotherThreadEndsTheWaitAndIsWhatAllCallsReturn) {
  WithLiar with;
  std::thread breaks([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(with.streams->Break(Cancelled("enough")), Cancelled("enough"));
    EXPECT_EQ(with.streams->Break(Cancelled("more")), Cancelled("enough"));
  });
  EXPECT_EQ(with.streams->Await(1).status(), Cancelled("enough"));
  breaks.join();
  EXPECT_EQ(with.streams->Outgoing(1).status(), Cancelled("enough"));
  EXPECT_EQ(with.streams->Forget(), Cancelled("enough"));
}

// Memory that was half filled at the end belongs to the caller again: the peer's bytes are dropped, and Gloo's thread
// does not spin for them.
TEST(StreamsTest, MemoryIsLetGoOfInTheMiddle) {
  WithLiar with;
  auto in = std::make_unique<std::vector<char>>(1 << 20), out = std::make_unique<std::vector<char>>(64 << 20);
  ASSERT_EQ(with.streams->Post(1, in->data(), 1 << 20), OkStatus());
  with.Say(Op::NOTIFY_RECV_READY, 1, out->size());
  with.Say(Op::NOTIFY_SEND_READY, 1, 1 << 20);
  with.Say(Op::SEND_UNBOUND_BUFFER, 1, 1 << 20);
  with.Say(std::string(1000, 'x'));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ASSERT_EQ(with.streams->SendFrom(1, out->data(), static_cast<int64_t>(out->size())), OkStatus());
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  (void)with.streams->Break(Cancelled("enough"));
  EXPECT_EQ(with.streams->Forget(), Cancelled("enough"));
  in.reset();
  out.reset();
  with.Say(std::string(100000, 'x'));
  const auto cpu_s = [] {
    rusage usage = {};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  };
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const double before = cpu_s();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_LT(cpu_s() - before, 0.2);
}

TEST(StreamsTest, AStartThatIsBrokenOffEnds) {
  const auto streams = Listen(0, 2);
  std::thread breaks([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    (void)streams->Break(Unavailable("rank 10 died"));
  });
  const Deadline since = Deadline::After(kSoon_s);
  EXPECT_EQ(streams->Connect({"", ""}, Sha256("key"), Deadline::After(kSoon_s)), Unavailable("rank 10 died"));
  EXPECT_LT(since.Elapsed(), kAtOnce_s);
  breaks.join();
}

TEST(StreamsTest, ALastMessageThatNobodyTakesIsAnErrorOfTheEndAndOfNoOperation) {
  WithLiar with;
  auto name = std::make_unique<std::string>(1000, 'x');
  with.streams->SetOperation("barrier", *name);
  ASSERT_TRUE(with.streams->Outgoing(1).ok());
  ASSERT_EQ(with.streams->Send(1, 1), OkStatus());
  name.reset();
  std::thread closes([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    with.liar = {};
  });
  const Status status = with.streams->Flush(kSoon_s);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("waited for it in end of the job"), std::string::npos) << status.message();
  closes.join();
}

// A child of a rank, as Python's multiprocessing makes them: it may destroy its copy without affecting its parent or
// the end of the connection.
TEST(StreamsTest, AForkMayDestroyItsCopyAndKeepsNoConnectionOpen) {
  testing::Ranks process(1, [](int, const testing::Ranks::Report& report) {
    auto all = Connected(2);
    const pid_t child = fork();
    if (child == 0) {
      all[0].reset();
      all[1].reset();
      sleep(kSoon_s);
      _exit(0);
    }
    SendText(*all[0], 1, "still there");
    ExpectText(*all[1], 0, "still there");
    all[0].reset();
    const Status status = all[1]->Await(0).status();
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const bool good = status.code() == StatusCode::kUnavailable && !::testing::Test::HasFailure();
    report(good ? "" : status.ToString());
    return good ? 0 : 1;
  });
  const testing::Outcome outcome = process.Wait(kSoon_s / 2)[0];
  EXPECT_TRUE(outcome.ended);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.signal.value_or(0) << outcome.report;
}

}  // namespace
}  // namespace lockstep::gloo
