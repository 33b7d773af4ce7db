#include "core/comm/named/named_messages.h"

#include <utility>

#include "core/base/bytes.h"

namespace lockstep::named_messages {
namespace {

// A message that has reached this size is sent, and another one begins. The last addition is at most one batch
// (sequencer.cc), so that no message comes near ControlLinks::kMaxMessageBytes.
constexpr size_t kFullBytes = size_t{16} << 20;

ByteWriter Begin(char kind) {
  ByteWriter writer;
  writer.Number(static_cast<uint8_t>(kind));
  return writer;
}

template <typename T>
std::vector<std::string> OfList(char kind, const std::vector<T>& items) {
  std::vector<std::string> messages;
  ByteWriter writer;
  for (const T& item : items) {
    if (writer.size() == 0) writer = Begin(kind);
    Write(item, writer);
    if (writer.size() >= kFullBytes) messages.push_back(writer.Take());
  }
  if (writer.size() > 0) messages.push_back(writer.Take());
  return messages;
}

template <typename T, typename Read>
std::optional<std::vector<T>> ReadList(std::string_view message, const Read& read) {
  ByteReader reader(message.substr(1));
  std::vector<T> items;
  while (reader.left() > 0) items.push_back(read(reader));
  if (!reader.Complete()) return std::nullopt;
  return items;
}

}  // namespace

std::vector<std::string> OfRequests(const std::vector<NamedRequest>& requests) { return OfList(kRequests, requests); }

std::vector<std::string> OfBatches(const std::vector<NamedBatch>& batches) { return OfList(kBatches, batches); }

std::string OfLeft(std::string_view how) { return std::string(1, kLeft).append(how); }

std::string OfEnd(const Status& why) {
  ByteWriter writer = Begin(kEnded);
  WriteStatus(why, writer);
  return writer.Take();
}

std::string Of(const Cancellation& cancellation) {
  ByteWriter writer = Begin(kCancelled);
  writer.Number(cancellation.ticket);
  writer.String(cancellation.name);
  writer.String(cancellation.why);
  return writer.Take();
}

char KindOf(std::string_view message) { return message.empty() ? '\0' : message.front(); }

std::optional<std::vector<NamedRequest>> ReadRequests(std::string_view message) {
  return ReadList<NamedRequest>(message, ReadNamedRequest);
}

std::optional<std::vector<NamedBatch>> ReadBatches(std::string_view message, int ranks) {
  return ReadList<NamedBatch>(message, [&](ByteReader& reader) { return ReadNamedBatch(reader, ranks); });
}

std::optional<Cancellation> ReadCancellation(std::string_view message) {
  ByteReader reader(message.substr(1));
  Cancellation cancellation;
  cancellation.ticket = reader.Number<uint64_t>();
  cancellation.name = reader.String();
  cancellation.why = reader.String();
  if (!reader.Complete()) return std::nullopt;
  return cancellation;
}

std::string_view ReadLeft(std::string_view message) { return message.substr(1); }

std::optional<Status> ReadEnd(std::string_view message) {
  ByteReader reader(message.substr(1));
  Status why = ReadStatus(reader);
  if (!reader.Complete() || why.ok()) return std::nullopt;
  return why;
}

}  // namespace lockstep::named_messages
