#pragma once

#include <openssl/types.h>

#include <cstdint>
#include <span>
#include <string_view>

namespace lockstep {

// The algorithms of OpenSSL's libcrypto behind sha256.h and sip_hash.h. Nothing else calls libcrypto.
//
// libcrypto is linked statically, and its symbols stay inside of our libraries: TensorFlow exports BoringSSL's
// functions, which have the same names and another ABI (cmake/Crypto.cmake). This copy reads no configuration file and
// has no handler at the exit of the process, so threads may still use it then.
//
// Invariant: nothing changes after the construction. Calls only copy from these objects and take no lock of libcrypto.
// So they work on all threads, and in a fork. Thread-safe.
class Crypto {
 public:
  // Returns the only object. The first call makes it; a fork at that time waits until it is complete.
  static const Crypto& Get();

  // Writes the code of the message under the key to `tag`, which has the code's size. prepared: a context without a
  // key.
  static void Authenticate(const EVP_MAC_CTX* prepared, std::string_view key, std::string_view message,
                           std::span<uint8_t> tag);

  // Ends the process if `good` is false. libcrypto's calls fail only without memory, or after a fault of this code.
  static void Check(bool good, const char* call);

  const EVP_MD* sha256() const { return sha256_; }
  const EVP_MAC_CTX* hmac_sha256() const { return hmac_sha256_; }
  const EVP_MAC_CTX* sip_hash() const { return sip_hash_; }

 private:
  Crypto();

  EVP_MD* sha256_;
  EVP_MAC_CTX* hmac_sha256_;
  EVP_MAC_CTX* sip_hash_;  // SipHash-2-4 with a tag of 128 bits
};

}  // namespace lockstep
