#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/status.h"

namespace lockstep {

// Writes messages as bytes: numbers in little-endian order, strings after their length of 4 bytes. Numbers are written
// and read by shifts, so the order is the protocol's and not the machine's. Thread-compatible.
// ```cpp
// ByteWriter writer;
// writer.Number(uint32_t{7});
// writer.String("name");
// ByteReader reader(bytes);
// const auto seven = reader.Number<uint32_t>();
// const std::string name = reader.String();
// if (!reader.Complete()) return DataLoss("no message of ours");
// ```
class ByteWriter {
 public:
  // T is an unsigned integer.
  template <typename T>
  void Number(T value) {
    for (size_t i = 0; i < sizeof(T); ++i) bytes_ += static_cast<char>(value >> (8 * i));
  }
  void String(std::string_view text) {
    Number(static_cast<uint32_t>(text.size()));
    bytes_ += text;
  }
  size_t size() const { return bytes_.size(); }
  std::string Take() { return std::exchange(bytes_, {}); }

 private:
  std::string bytes_;
};

// Reads what ByteWriter wrote. The sender is not trusted: a length is compared with the bytes that are left before it
// is used. After the first value that is missing, all further values read as zero or empty and good() is false. So a
// decoder reads all fields in a row and checks once, at the end. The reader is a view: the bytes have to outlive it.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  T Number() {
    const std::string_view raw = Raw(sizeof(T));
    T value = 0;
    for (size_t i = 0; i < raw.size(); ++i) value |= static_cast<T>(static_cast<uint8_t>(raw[i])) << (8 * i);
    return value;
  }
  std::string String() { return std::string(Raw(Number<uint32_t>())); }
  // Returns the number of bytes that are left. It bounds the length of a list before memory for the list is allocated.
  size_t left() const { return good_ ? bytes_.size() : 0; }
  // Returns whether the message was read to its last byte, with no byte missing.
  bool Complete() const { return good_ && bytes_.empty(); }
  bool good() const { return good_; }
  // Marks the message as damaged, for a caller that read an impossible value.
  void MarkDamaged() { good_ = false; }

 private:
  // Returns a view of the next `size` bytes.
  std::string_view Raw(size_t size) {
    if (!good_ || size > bytes_.size()) {
      good_ = false;
      return {};
    }
    const std::string_view raw = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return raw;
  }

  std::string_view bytes_;
  bool good_ = true;
};

// Writes a status: its code (4 bytes) and its message.
inline void WriteStatus(const Status& status, ByteWriter& writer) {
  writer.Number(static_cast<uint32_t>(status.code()));
  writer.String(status.message());
}

// Reads a status. Spoils the reader if the code is unknown.
inline Status ReadStatus(ByteReader& reader) {
  const auto code = reader.Number<uint32_t>();
  std::string message = reader.String();
  if (code > static_cast<uint32_t>(StatusCode::kDataLoss)) reader.MarkDamaged();
  if (code == 0 || !reader.good()) return OkStatus();
  return Status(static_cast<StatusCode>(code), std::move(message));
}

}  // namespace lockstep
