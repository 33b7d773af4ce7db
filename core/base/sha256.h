#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>

// OpenSSL's EVP_MD_CTX. Its headers stay out of this one.
struct evp_md_ctx_st;

namespace lockstep {

// SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104), computed by OpenSSL's libcrypto (crypto.h). Pure functions;
// thread-safe, also in a fork. Keys and copies of them are not wiped from memory.
using Digest = std::array<uint8_t, 32>;

// Returns the digest of any bytes, including zeros and the empty text.
Digest Sha256(std::string_view message);

// The digest of a message that comes in pieces of any size. Not thread-safe.
class Sha256Stream {
 public:
  Sha256Stream();
  void Update(std::string_view piece);
  // Returns the digest of all pieces. No method may be called after it.
  Digest Finish();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };

  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

// Returns a proof, for a receiver with the same `key`, that the sender of `message` has the key and that the message
// was not changed on the way. Keys have any length. The proof covers only the bytes. So a message names its purpose
// ("lockstep guest:", ...) and its receiver, and its proof is useless elsewhere.
Digest HmacSha256(std::string_view key, std::string_view message);

// Compares in a time that does not depend on where the digests differ, so that a peer cannot guess a digest byte by
// byte. Digests from outside are always compared by this function, never by ==.
bool SameDigest(const Digest& a, const Digest& b);

// Returns a view of the 32 bytes, for a message or as the key of another digest; `digest` has to outlive it.
inline std::string_view AsBytes(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace lockstep
