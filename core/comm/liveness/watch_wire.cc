#include "core/comm/liveness/watch_wire.h"

#include <cstring>
#include <utility>

#include "core/base/bytes.h"
#include "core/base/strings.h"

namespace lockstep::watch {

Status Cut(const Status& status, size_t most) {
  const std::string& text = status.message();
  if (text.size() <= most) return status;
  // The bytes of a character after its first one begin with the bits 10.
  while (most > 0 && (static_cast<uint8_t>(text[most]) & 0xC0) == 0x80) --most;
  return Status(status.code(), text.substr(0, most));
}

std::string Encode(const Message& message) {
  ByteWriter writer;
  writer.Number(static_cast<uint8_t>(message.kind));
  if (message.kind != Message::Kind::kBeat) writer.Number(message.rank);
  if (message.kind == Message::Kind::kLeft) writer.String(Cut(message.status, kMaxTextBytes).message());
  if (message.kind == Message::Kind::kEnd) WriteStatus(Cut(message.status, kMaxTextBytes), writer);
  return writer.Take();
}

std::optional<Message> Decode(std::string_view bytes) {
  ByteReader reader(bytes);
  Message message;
  message.kind = static_cast<Message::Kind>(reader.Number<uint8_t>());
  switch (message.kind) {
    case Message::Kind::kBeat: break;
    case Message::Kind::kLeft:
      message.rank = reader.Number<uint32_t>();
      if (std::string how = reader.String(); !how.empty()) message.status = Cancelled(std::move(how));
      break;
    case Message::Kind::kEnd:
      message.rank = reader.Number<uint32_t>();
      message.status = ReadStatus(reader);
      if (message.status.ok()) reader.MarkDamaged();
      break;
    default: reader.MarkDamaged();
  }
  if (!reader.Complete()) return std::nullopt;
  return message;
}

Channel::Channel(const Digest& meeting_key, int guest, Direction direction)
    : key_(HmacSha256(AsBytes(meeting_key), StrCat("lockstep watch:", guest, static_cast<char>(direction)))) {}

Digest Channel::Tag(std::string_view body) const {
  ByteWriter writer;
  writer.Number(number_);
  return HmacSha256(AsBytes(key_), StrCat(writer.Take(), body));
}

std::string Channel::Seal(std::string_view body) {
  ByteWriter writer;
  writer.String(body);
  std::string frame = writer.Take().append(AsBytes(Tag(body)));
  ++number_;
  return frame;
}

// The tag does not cover the length: with another length the body is another.
Result<std::optional<std::string>> Channel::Open(std::string& input) {
  std::string_view bytes = input;
  if (bytes.size() < sizeof(uint32_t)) return std::optional<std::string>();
  const uint32_t length = ByteReader(bytes).Number<uint32_t>();
  if (length > kMaxBodyBytes) return DataLoss(StrCat("a frame of ", length, " bytes, at most ", kMaxBodyBytes));
  bytes.remove_prefix(sizeof(uint32_t));
  if (bytes.size() < length + kTagBytes) return std::optional<std::string>();
  std::string body(bytes.substr(0, length));
  Digest tag;
  std::memcpy(tag.data(), bytes.data() + length, kTagBytes);
  if (!SameDigest(tag, Tag(body))) return DataLoss("a frame with a wrong authentication tag");
  ++number_;
  input.erase(0, sizeof(uint32_t) + length + kTagBytes);
  return std::optional<std::string>(std::move(body));
}

}  // namespace lockstep::watch
