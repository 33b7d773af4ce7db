#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/dtype.h"
#include "core/comm/collective/reduce.h"
#include "core/device/comm/nccl_api.h"
#include "core/testing/emulator/stream.h"

// A stand-in for libnccl.so.2, for tests without GPUs: ranks are processes of one host, or threads. It has the
// functions of core/device/comm/nccl_api.h, with NCCL's contracts as far as this project relies on them.
//
// Work is put on the emulated stream and holds it until the peers have come, as NCCL's kernels do. It starts when the
// stream comes to it, and its messages go through mailboxes in shared memory. ncclCommAbort ends waiting work from any
// thread. Like NCCL, which frees memory then, it returns when no work of the device waits any more, also no work of the
// rank's other communicators. Work that comes into the stream later does nothing. With blocking = 0 the connection, and
// the first group of each communicator, return ncclInProgress for a moment. Sums: ncclAllReduce and ncclReduceScatter
// add the ranks from the last one down, so their bits differ from the bits of an ordered sum.
//
// It is stricter than NCCL. A message of another length than its receiver wants, or of another group of calls, is
// ncclInvalidUsage, with a line on stderr. A thread that ends with an open group ends the process. So does a function
// that gets a communicator that was destroyed.
//
// Variables plant faults for the tests of programs:
//   LOCKSTEP_STANDIN_NCCL_VERSION=NUMBER     another version
//   LOCKSTEP_STANDIN_NCCL_ERROR=CODE/RANKS   communicators of so many ranks end with this ncclResult_t while they
//                                            connect, as NCCL refuses two ranks on one device
//   LOCKSTEP_STANDIN_NCCL_HANG=RANKS         communicators of so many ranks are never made: the call does not return
//
// Shared memory is a memfd of the process that made the id, which the others open by /proc. So nothing is left of a
// job whose ranks were killed.

namespace lockstep::testing {
namespace {

namespace nccl = device::nccl;
using Clock = std::chrono::steady_clock;

constexpr size_t kBoxBytes = size_t{256} << 10;
constexpr nccl::Code kSystemError = 2, kInvalidArgument = 4;

[[noreturn]] void Die(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::fputs("stand-in NCCL: ", stderr);
  std::vfprintf(stderr, format, arguments);
  std::fputc('\n', stderr);
  va_end(arguments);
  std::abort();
}

// A piece of a message from one rank to another. The writer fills it when written == read, and the reader empties it.
struct Mailbox {
  std::atomic<uint64_t> written, read;
  uint64_t group;  // the number of the group among those with messages between the two
  uint64_t total;  // the bytes of the whole message
  uint64_t bytes;
  char data[kBoxBytes];
};

// Zeros at first. boxes: [from, to].
struct SharedState {
  std::atomic<int> arrived;
  Mailbox boxes[];
};

// A message of this rank, as far as it has come.
struct Message {
  bool sends;
  int peer;
  char* at;
  size_t bytes;
  uint64_t group = 0;
  size_t total = bytes;
  bool has_begun = false;
};

// A call within a group: its messages, and what is done when they have arrived.
struct Operation {
  std::vector<Message> messages;
  std::function<void()> finish;
};

struct Communicator {
  int rank = 0, size = 0;
  SharedState* shared = nullptr;
  // Groups with messages to and from each rank.
  std::vector<uint64_t> groups = {};
  std::atomic<bool> is_connected{false}, has_ended{false};  // has_ended: aborted or destroyed
  std::atomic<int> error{nccl::kSuccess};
  std::atomic<int> num_queued{0};
  Clock::time_point busy_until = {};  // in the first group
  bool had_group = false;
  std::thread connecting;

  // The shared memory stays mapped: late work in a stream still looks at it.
  void End() {
    has_ended = true;
    if (connecting.joinable()) connecting.join();
  }
  Mailbox& Box(int from, int to) const { return shared->boxes[from * size + to]; }

  void Fail(const std::string& what) {
    std::fprintf(stderr, "stand-in NCCL: rank %d: %s\n", rank, what.c_str());
    error = nccl::kInvalidUsage;
  }

  bool Send(Message& message) const {
    Mailbox& box = Box(rank, message.peer);
    if (box.written.load(std::memory_order_relaxed) != box.read.load(std::memory_order_acquire)) return false;
    box.group = message.group;
    box.total = message.total;
    box.bytes = std::min(message.bytes, kBoxBytes);
    std::memcpy(box.data, message.at, box.bytes);
    message.at += box.bytes;
    message.bytes -= box.bytes;
    box.written.fetch_add(1, std::memory_order_release);
    return true;
  }

  bool Receive(Message& message) {
    Mailbox& box = Box(message.peer, rank);
    if (box.written.load(std::memory_order_acquire) == box.read.load(std::memory_order_relaxed)) return false;
    if (!message.has_begun && (box.group != message.group || box.total != message.total)) {
      Fail("group " + std::to_string(box.group) + " of rank " + std::to_string(message.peer) + " sends " +
           std::to_string(box.total) + " bytes, wanted " + std::to_string(message.total) + " in group " +
           std::to_string(message.group));
      return false;
    }
    message.has_begun = true;
    std::memcpy(message.at, box.data, box.bytes);
    message.at += box.bytes;
    message.bytes -= box.bytes;
    box.read.fetch_add(1, std::memory_order_release);
    return true;
  }

  // Moves all messages, in any order between peers and in their order with each of them, so that no order of calls
  // within a group can block another one.
  void Run(std::vector<Operation> operations) {
    std::vector<std::vector<Message*>> sends(size), receives(size);
    for (Operation& operation : operations) {
      for (Message& message : operation.messages) {
        if (message.bytes > 0) (message.sends ? sends : receives)[message.peer].push_back(&message);
      }
    }
    std::vector<size_t> sent(size), received(size);
    for (int idle = 0;;) {
      if (has_ended || error != nccl::kSuccess) return;
      bool is_open = false, has_moved = false;
      for (int peer = 0; peer < size; ++peer) {
        if (sent[peer] < sends[peer].size()) {
          is_open = true;
          Message& message = *sends[peer][sent[peer]];
          has_moved |= Send(message);
          if (message.bytes == 0) ++sent[peer];
        }
        if (received[peer] < receives[peer].size()) {
          is_open = true;
          Message& message = *receives[peer][received[peer]];
          has_moved |= Receive(message);
          if (message.bytes == 0) ++received[peer];
        }
      }
      if (!is_open) break;
      idle = has_moved ? 0 : idle + 1;
      if (idle > 100) std::this_thread::sleep_for(std::chrono::microseconds(50));
      if (idle > 0) std::this_thread::yield();
    }
    for (const Operation& operation : operations) {
      if (operation.finish) operation.finish();
    }
  }
};

// The work of all communicators of a rank in this process that has not ended. Ranks may be threads.
std::atomic<int>& QueuedBy(int rank) {
  constexpr int kMostRanks = 64;
  static std::atomic<int> queued[kMostRanks] = {};
  return queued[rank % kMostRanks];
}

// The target of NCCL's handle. Work in streams has shares of the communicator.
struct Handle {
  std::shared_ptr<Communicator> communicator;
};

// Handles stay as long as the process, so that a later use of one is found.
Handle* NewHandle(std::shared_ptr<Communicator> communicator) {
  static std::mutex mutex;
  static auto& handles = *new std::deque<Handle>;  // no leak: leak checkers reach all of them from here
  const std::lock_guard lock(mutex);
  handles.push_back({std::move(communicator)});
  return &handles.back();
}

Communicator& Of(nccl::Comm comm) {
  Communicator& communicator = *reinterpret_cast<Handle*>(comm)->communicator;
  if (communicator.has_ended) Die("rank %d uses a communicator that was destroyed or aborted", communicator.rank);
  return communicator;
}
const std::shared_ptr<Communicator>& SharedOf(nccl::Comm comm) {
  (void)Of(comm);
  return reinterpret_cast<Handle*>(comm)->communicator;
}

// The group of a thread.
struct Group {
  struct Queued {
    std::shared_ptr<Communicator> communicator;
    emulator::Stream* stream;
    Operation operation;
  };
  int depth = 0;
  std::vector<Queued> queue;

  ~Group() {
    if (depth != 0) Die("a thread ends with %d open groups", depth);
  }

  // One piece of work for each communicator and stream. The groups are numbered here, in the order of the calls.
  nccl::Code Flush() {
    nccl::Code code = nccl::kSuccess;
    std::vector<Queued> all = std::move(queue);
    queue.clear();
    while (!all.empty()) {
      const std::shared_ptr<Communicator> communicator = all.front().communicator;
      emulator::Stream* const stream = all.front().stream;
      std::vector<Operation> operations;
      std::vector<Queued> rest;
      for (Queued& queued : all) {
        if (queued.communicator == communicator && queued.stream == stream) {
          operations.push_back(std::move(queued.operation));
        } else {
          rest.push_back(std::move(queued));
        }
      }
      all = std::move(rest);
      if (communicator->error != nccl::kSuccess) return communicator->error;
      std::vector<char> has_messages(communicator->size, 0);
      for (Operation& operation : operations) {
        for (Message& message : operation.messages) {
          if (message.bytes > 0 && std::exchange(has_messages[message.peer], 1) == 0) {
            ++communicator->groups[message.peer];
          }
          message.group = communicator->groups[message.peer];
        }
      }
      if (!std::exchange(communicator->had_group, true)) {
        communicator->busy_until = Clock::now() + std::chrono::milliseconds(1);
        code = nccl::kInProgress;
      }
      ++communicator->num_queued;
      ++QueuedBy(communicator->rank);
      stream->Post([communicator, operations = std::move(operations)]() mutable {
        communicator->Run(std::move(operations));
        --communicator->num_queued;
        --QueuedBy(communicator->rank);
      });
    }
    return code;
  }
};
thread_local Group t_group;

nccl::Code Queue(nccl::Comm comm, device::Stream stream, Operation operation) {
  if (stream == nullptr) Die("a call without a stream");
  t_group.queue.push_back({SharedOf(comm), reinterpret_cast<emulator::Stream*>(stream), std::move(operation)});
  return t_group.depth == 0 ? t_group.Flush() : nccl::kSuccess;
}

size_t SizeOf(nccl::Type type) {
  constexpr size_t kSizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return kSizes[static_cast<int>(type)];
}

DType DTypeOf(nccl::Type type) {
  constexpr DType kTypes[] = {DType::kInt8,   DType::kUInt8,   DType::kInt32,   DType::kUInt32,  DType::kInt64,
                              DType::kUInt64, DType::kFloat16, DType::kFloat32, DType::kFloat64, DType::kBFloat16};
  return kTypes[static_cast<int>(type)];
}

ReduceOp ReduceOpOf(nccl::Op op) {
  constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kMean};
  return kOps[static_cast<int>(op)];
}

char* Writable(const void* data) { return static_cast<char*>(const_cast<void*>(data)); }

// Reduces elements [begin(r), begin(r) + count) of all ranks' inputs on each rank r.
nccl::Code Reduce(const void* in, void* out, size_t count, size_t stride_count, nccl::Type type, nccl::Op op,
                  nccl::Comm comm, device::Stream stream) {
  const Communicator& c = Of(comm);
  const ReduceFunction reduce = FindReduce(ReduceOpOf(op), DTypeOf(type));
  if (reduce == nullptr) return kInvalidArgument;
  const size_t bytes = count * SizeOf(type), stride = stride_count * SizeOf(type);
  auto received = std::make_shared<std::vector<char>>(bytes * c.size);
  Operation operation;
  for (int r = 0; r < c.size; ++r) {
    if (r == c.rank) continue;
    operation.messages.push_back({true, r, Writable(in) + r * stride, bytes});
    operation.messages.push_back({false, r, received->data() + r * bytes, bytes});
  }
  operation.finish = [=, rank = c.rank, size = c.size] {
    std::vector<const void*> sources;
    for (int r = size - 1; r >= 0; --r) {
      sources.push_back(r == rank ? Writable(in) + rank * stride : received->data() + r * bytes);
    }
    std::vector<char> result(bytes);
    reduce(sources.data(), size, static_cast<int64_t>(count), result.data());
    if (bytes > 0) std::memcpy(out, result.data(), bytes);
  };
  return Queue(comm, stream, std::move(operation));
}

// Returns the error with which communicators of `size` ranks end while they connect.
nccl::Code PlantedError(int size) {
  const char* const planted = std::getenv("LOCKSTEP_STANDIN_NCCL_ERROR");
  int code = 0, ranks = 0;
  const bool is_planted = planted != nullptr && std::sscanf(planted, "%d/%d", &code, &ranks) == 2 && ranks == size;
  return is_planted ? code : nccl::kSuccess;
}

void HangIfPlanted(int size) {
  const char* const planted = std::getenv("LOCKSTEP_STANDIN_NCCL_HANG");
  while (planted != nullptr && std::atoi(planted) == size) std::this_thread::sleep_for(std::chrono::hours(1));
}

// "pid fd number": where the others find the shared memory.
constexpr char kIdFormat[] = "standin %d %d %d";

int OpenShared(const nccl::UniqueId& id, size_t bytes) {
  int pid = 0, fd = 0, number = 0;
  if (std::sscanf(id.internal, kIdFormat, &pid, &fd, &number) != 3) return -1;
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  const int own = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (own >= 0 && ftruncate(own, static_cast<off_t>(bytes)) == 0) return own;
  if (own >= 0) close(own);
  return -1;
}

}  // namespace
}  // namespace lockstep::testing

using lockstep::device::nccl::Code;
using lockstep::device::nccl::Comm;
using lockstep::device::nccl::Config;
using lockstep::device::nccl::Op;
using lockstep::device::nccl::Type;
using lockstep::device::nccl::UniqueId;
using DeviceStream = lockstep::device::Stream;
namespace standin = lockstep::testing;

#define STANDIN_EXPORT extern "C" __attribute__((visibility("default")))

STANDIN_EXPORT Code ncclGetVersion(int* version) {
  const char* const wanted = std::getenv("LOCKSTEP_STANDIN_NCCL_VERSION");
  *version = wanted == nullptr ? 22707 : std::atoi(wanted);
  return lockstep::device::nccl::kSuccess;
}

STANDIN_EXPORT const char* ncclGetErrorString(Code code) {
  switch (code) {
    case 0: return "no error";
    case 2: return "unhandled system error";
    case 4: return "invalid argument";
    case 5: return "invalid usage";
    case 6: return "remote process exited or there was a network error";
    case 7: return "in progress";
    default: return "internal error";
  }
}

STANDIN_EXPORT Code ncclGetUniqueId(UniqueId* id) {
  static std::atomic<int> number{0};
  const int fd = memfd_create("stand-in NCCL", MFD_CLOEXEC);
  if (fd < 0) return standin::kSystemError;
  *id = {};
  std::snprintf(id->internal, sizeof(id->internal), standin::kIdFormat, getpid(), fd, number++);
  return lockstep::device::nccl::kSuccess;
}

// The creator's descriptor stays open until its process ends: others may open it at any time.
STANDIN_EXPORT Code ncclCommInitRankConfig(Comm* comm, int size, UniqueId id, int rank, Config* config) {
  if (config->magic != 0xcafebeef || config->blocking != 0 || rank < 0 || rank >= size) {
    return standin::kInvalidArgument;
  }
  standin::HangIfPlanted(size);
  auto communicator = std::make_shared<standin::Communicator>();
  communicator->rank = rank;
  communicator->size = size;
  communicator->groups.resize(size);
  const size_t bytes = sizeof(standin::SharedState) + sizeof(standin::Mailbox) * size * size;
  const int fd = standin::OpenShared(id, bytes);
  if (fd < 0) return standin::kSystemError;
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (memory == MAP_FAILED) return standin::kSystemError;
  communicator->shared = static_cast<standin::SharedState*>(memory);
  ++communicator->shared->arrived;
  communicator->connecting = std::thread([c = communicator.get()] {
    while (c->shared->arrived < c->size && !c->has_ended) std::this_thread::sleep_for(std::chrono::microseconds(100));
    if (const Code planted = standin::PlantedError(c->size)) c->error = planted;
    c->is_connected = true;
  });
  *comm = reinterpret_cast<Comm>(standin::NewHandle(std::move(communicator)));
  return lockstep::device::nccl::kInProgress;
}

STANDIN_EXPORT Code ncclCommGetAsyncError(Comm comm, Code* code) {
  const standin::Communicator& c = standin::Of(comm);
  const bool is_busy = !c.is_connected || standin::Clock::now() < c.busy_until;
  *code = c.error != 0 ? c.error.load()
          : is_busy    ? lockstep::device::nccl::kInProgress
                       : lockstep::device::nccl::kSuccess;
  return lockstep::device::nccl::kSuccess;
}

STANDIN_EXPORT Code ncclCommAbort(Comm comm) {
  standin::Communicator& c = standin::Of(comm);
  c.End();
  const auto end = standin::Clock::now() + std::chrono::seconds(20);
  while (standin::QueuedBy(c.rank) > 0) {
    if (standin::Clock::now() > end) {
      std::fprintf(stderr, "stand-in NCCL: rank %d: work on the device keeps an abort from its end\n", c.rank);
      return standin::kSystemError;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return lockstep::device::nccl::kSuccess;
}

STANDIN_EXPORT Code ncclCommFinalize(Comm comm) {
  return standin::Of(comm).num_queued == 0 ? lockstep::device::nccl::kSuccess : lockstep::device::nccl::kInProgress;
}

STANDIN_EXPORT Code ncclCommDestroy(Comm comm) {
  standin::Communicator& c = standin::Of(comm);
  if (c.num_queued != 0) standin::Die("rank %d destroys a communicator with work in a stream", c.rank);
  c.End();
  return lockstep::device::nccl::kSuccess;
}

STANDIN_EXPORT Code ncclGroupStart() {
  ++standin::t_group.depth;
  return lockstep::device::nccl::kSuccess;
}

STANDIN_EXPORT Code ncclGroupEnd() {
  if (standin::t_group.depth == 0) return lockstep::device::nccl::kInvalidUsage;
  return --standin::t_group.depth == 0 ? standin::t_group.Flush() : lockstep::device::nccl::kSuccess;
}

STANDIN_EXPORT Code ncclSend(const void* data, size_t count, Type type, int peer, Comm comm, DeviceStream stream) {
  const standin::Communicator& c = standin::Of(comm);
  if (peer < 0 || peer >= c.size || peer == c.rank) return standin::kInvalidArgument;
  return standin::Queue(comm, stream, {{{true, peer, standin::Writable(data), count * standin::SizeOf(type)}}, {}});
}

STANDIN_EXPORT Code ncclRecv(void* data, size_t count, Type type, int peer, Comm comm, DeviceStream stream) {
  const standin::Communicator& c = standin::Of(comm);
  if (peer < 0 || peer >= c.size || peer == c.rank) return standin::kInvalidArgument;
  return standin::Queue(comm, stream, {{{false, peer, standin::Writable(data), count * standin::SizeOf(type)}}, {}});
}

STANDIN_EXPORT Code ncclAllReduce(const void* in, void* out, size_t count, Type type, Op op, Comm comm,
                                  DeviceStream stream) {
  return standin::Reduce(in, out, count, 0, type, op, comm, stream);
}

STANDIN_EXPORT Code ncclReduceScatter(const void* in, void* out, size_t count, Type type, Op op, Comm comm,
                                      DeviceStream stream) {
  return standin::Reduce(in, out, count, count, type, op, comm, stream);
}

STANDIN_EXPORT Code ncclBroadcast(const void* in, void* out, size_t count, Type type, int root, Comm comm,
                                  DeviceStream stream) {
  const standin::Communicator& c = standin::Of(comm);
  if (root < 0 || root >= c.size) return standin::kInvalidArgument;
  const size_t bytes = count * standin::SizeOf(type);
  standin::Operation operation;
  for (int r = 0; r < c.size; ++r) {
    if (r == c.rank || (c.rank != root && r != root)) continue;
    operation.messages.push_back({c.rank == root, r, standin::Writable(c.rank == root ? in : out), bytes});
  }
  return standin::Queue(comm, stream, std::move(operation));
}
