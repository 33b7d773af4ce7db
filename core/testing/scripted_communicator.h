#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/comm/collective/arguments.h"
#include "core/comm/collective/arrivals.h"
#include "core/comm/collective/communicator.h"

namespace lockstep::testing {

// Rank 0 of two ranks, of which rank 1 is a script: the bytes of its messages, which may be anything. It is for fuzz
// targets of the readers of exchanged messages. It needs no threads, so an input takes microseconds.
//
// Every AllGatherV and AllToAllV takes a message from the front of the script:
//
//   length (2, little-endian) | that many bytes      the peer sends them, as many items as they are
//   0xffff | count (8)                               the peer announces that many items, and the connection ends
//
// A possible announcement of more than kMostBytes is not passed on: rightly, memory would be reserved for it.
//
// A Broadcast of the peer takes its bytes. Behind the end of the script there are empty messages. Reductions and
// barriers succeed, and leave their output as it is.
class ScriptedCommunicator : public Communicator {
 public:
  explicit ScriptedCommunicator(std::string_view script) : script_(script) {}

  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::string_view backend() const override { return "script"; }

  Status AllReduce(std::string_view, ReduceOp, DType, int64_t, const void*, void*) override { return OkStatus(); }
  Status ReduceScatter(std::string_view, ReduceOp, DType, std::span<const int64_t>, const void*, void*) override {
    return OkStatus();
  }
  Status Broadcast(std::string_view, int root, int64_t bytes, void* data) override {
    const std::string_view part = script_.substr(0, static_cast<size_t>(bytes));
    if (root == 1 && !part.empty()) std::memcpy(data, part.data(), part.size());
    if (root == 1) script_.remove_prefix(part.size());
    return OkStatus();
  }
  Status AllGatherV(std::string_view name, Item item, int64_t count, const void* in,
                    const Allocate& allocate) override {
    return Exchange(name, item, count, in, allocate);
  }
  Status AllToAllV(std::string_view name, Item item, std::span<const int64_t> send_counts, const void* in,
                   const Allocate& allocate) override {
    sent_to_peer_ = {static_cast<const char*>(in) + send_counts[0] * item.bytes(),
                     static_cast<size_t>(send_counts[1] * item.bytes())};
    return Exchange(name, item, send_counts[0], in, allocate);
  }
  Status Barrier(std::string_view) override { return OkStatus(); }
  Status Decline(std::string_view, const Status& why) override { return why; }
  void Abort(const Status&) override {}
  void Leave(std::string_view) override {}
  std::optional<int> Link(int) const override { return std::nullopt; }
  std::shared_ptr<SharedBuffer> AllocateShared(int64_t) override { return nullptr; }
  bool peers_read_shared() const override { return false; }

  // Returns what the last AllToAllV has sent to the peer: the well-formed message of such an exchange.
  const std::string& sent_to_peer() const { return sent_to_peer_; }
  // Returns a message of a script.
  static std::string Message(std::string_view bytes) {
    std::string message = {static_cast<char>(bytes.size()), static_cast<char>(bytes.size() >> 8)};
    return message.append(bytes);
  }

 private:
  static constexpr size_t kAnnounces = 0xffff;
  static constexpr int64_t kMostBytes = 1 << 20;

  std::string_view Next(size_t bytes) {
    const std::string_view next = script_.substr(0, bytes);
    script_.remove_prefix(next.size());
    return next;
  }
  uint64_t NextNumber(size_t bytes) {
    uint64_t number = 0;
    const std::string_view raw = Next(bytes);
    for (size_t i = 0; i < raw.size(); ++i) number |= uint64_t{static_cast<uint8_t>(raw[i])} << (8 * i);
    return number;
  }

  Status Exchange(std::string_view name, Item item, int64_t own_count, const void* own, const Allocate& allocate) {
    const size_t length = NextNumber(2);
    const bool announces = length == kAnnounces;
    const int64_t width = std::max<int64_t>(item.bytes(), 1);
    // The bytes of the peer are exactly as long as its items, so that the address sanitizer sees reads beyond them.
    const std::string_view bytes = announces ? std::string_view() : Next(length);
    const int64_t items = static_cast<int64_t>(bytes.size()) / width;
    const int64_t announced = announces ? static_cast<int64_t>(NextNumber(8)) : items;
    const int64_t counts[] = {own_count, announced};
    const bool possible = CheckAnnounced(name, counts, item.bytes()).ok();
    if (possible && announced > kMostBytes / width) return Unavailable("rank 1 is gone");
    const Received received = AllocateFor("exchange", name, counts, item.bytes(), allocate);
    LOCKSTEP_RETURN_IF_ERROR(received.status);
    if (announces && announced != 0) return Unavailable("rank 1 is gone");
    char* to = received.data;
    const int64_t own_bytes = own_count * item.bytes();
    if (own_bytes > 0) std::memcpy(to, own, static_cast<size_t>(own_bytes));
    if (items > 0) std::memcpy(to + own_bytes, bytes.data(), static_cast<size_t>(items * width));
    return OkStatus();
  }

  std::string_view script_;
  std::string sent_to_peer_;
};

}  // namespace lockstep::testing
