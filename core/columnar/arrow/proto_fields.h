#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>

namespace lockstep::columnar {

// One encoded field of a Protocol Buffers message. https://protobuf.dev/programming-guides/encoding
struct ProtoField {
  uint32_t number = 0;
  uint64_t value = 0;      // a varint, or the bits of a fixed-size value
  std::string_view bytes;  // a value with a length: string, message, packed numbers

  // Returns the value of a sint64, which is encoded with its sign in the lowest bit.
  int64_t Signed() const { return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1); }
  double Double() const { return std::bit_cast<double>(value); }

  bool operator==(const ProtoField&) const = default;
};

// Walks through the fields of a message, in their order. Never reads beyond the bytes, even if they are malformed. Not
// thread-safe; does not own the bytes.
//
//   ProtoFields fields(message);
//   while (const auto field = fields.Next()) ...
//   if (fields.damaged()) ...
class ProtoFields {
 public:
  explicit ProtoFields(std::string_view message) : rest_(message) {}

  // Returns the next field; nothing at the end, or if the bytes are not a valid message.
  std::optional<ProtoField> Next() {
    if (rest_.empty() || damaged_) return std::nullopt;
    const uint64_t key = Varint();
    ProtoField field;
    field.number = static_cast<uint32_t>(key >> 3);
    switch (key & 7) {
      case 0: field.value = Varint(); break;
      case 1: field.value = Fixed(8); break;
      case 2: field.bytes = Bytes(Varint()); break;
      case 5: field.value = Fixed(4); break;
      default: damaged_ = true;
    }
    if (damaged_) return std::nullopt;
    return field;
  }

  // Returns the next number of a packed field. This object must have been made of that field's bytes.
  std::optional<uint64_t> NextPacked() {
    if (rest_.empty() || damaged_) return std::nullopt;
    const uint64_t value = Varint();
    if (damaged_) return std::nullopt;
    return value;
  }

  // Returns whether Next or NextPacked has met bytes that are not valid.
  bool damaged() const { return damaged_; }

 private:
  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<uint8_t>(rest_[0]);
      rest_.remove_prefix(1);
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    damaged_ = true;
    return 0;
  }

  uint64_t Fixed(size_t size) {
    const std::string_view bytes = Bytes(size);
    uint64_t value = 0;
    for (size_t i = 0; i < bytes.size(); ++i) value |= uint64_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
    return value;
  }

  std::string_view Bytes(uint64_t size) {
    if (size > rest_.size()) {
      damaged_ = true;
      return {};
    }
    const std::string_view bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return bytes;
  }

  std::string_view rest_;
  bool damaged_ = false;
};

}  // namespace lockstep::columnar
