#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>

namespace lockstep::columnar {

// One field of a message of Protocol Buffers, as it is encoded. https://protobuf.dev/programming-guides/encoding
struct ProtoField {
  uint32_t number = 0;
  uint64_t value = 0;      // of a varint, or the bits of a fixed-size value
  std::string_view bytes;  // of what has a length: strings, messages, packed numbers

  // A sint64, which is encoded with its sign in the lowest bit.
  int64_t Signed() const { return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1); }
  double Double() const { return std::bit_cast<double>(value); }

  bool operator==(const ProtoField&) const = default;
};

// Goes through the fields of a message, in the order in which they stand. Never reads beyond the bytes, whatever they
// are. Not thread-safe; does not own the bytes.
//
//   ProtoFields fields(message);
//   while (const auto field = fields.Next()) ...
//   if (fields.damaged()) ...
class ProtoFields {
 public:
  explicit ProtoFields(std::string_view message) : rest_(message) {}

  // Nothing at the end, and where the bytes are no message.
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

  // The next number of a field of packed varints, whose bytes are all that this was made of.
  std::optional<uint64_t> NextPacked() {
    if (rest_.empty() || damaged_) return std::nullopt;
    const uint64_t value = Varint();
    if (damaged_) return std::nullopt;
    return value;
  }

  // Whether Next has come to bytes that are no field.
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
