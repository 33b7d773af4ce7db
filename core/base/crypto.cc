#include "core/base/crypto.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "core/base/held_in_forks.h"
#include "core/base/mutex.h"

namespace lockstep {
namespace {

// Guards the construction of the object. A fork holds it, so that no child gets half an object, or a lock of libcrypto
// that a thread of its parent holds.
struct Construction {
  static Construction& Get() {
    static auto* const construction = new Construction();
    return *construction;
  }

  // Without memory for the handlers, a fork during the construction may wait forever at its first digest.
  Construction() { HoldInForks<Construction>(); }
  void InChild() const {}

  Mutex mutex;
  std::atomic<const Crypto*> crypto{nullptr};
};

// Returns a context of a message authentication code, without a key.
EVP_MAC_CTX* Prepare(const char* name, const OSSL_PARAM* settings) {
  EVP_MAC* const mac = EVP_MAC_fetch(nullptr, name, nullptr);
  Crypto::Check(mac != nullptr, "EVP_MAC_fetch");
  EVP_MAC_CTX* const context = EVP_MAC_CTX_new(mac);
  Crypto::Check(context != nullptr && EVP_MAC_CTX_set_params(context, settings) == 1, "EVP_MAC_CTX_new");
  EVP_MAC_free(mac);  // the context keeps it
  return context;
}

}  // namespace

Crypto::Crypto() {
  Check(OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT | OPENSSL_INIT_NO_LOAD_CONFIG, nullptr) == 1, "OPENSSL_init_crypto");
  sha256_ = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  Check(sha256_ != nullptr, "EVP_MD_fetch");
  char digest[] = "SHA256";
  const OSSL_PARAM with_sha256[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
                                    OSSL_PARAM_construct_end()};
  hmac_sha256_ = Prepare("HMAC", with_sha256);
  size_t bytes = 16;
  const OSSL_PARAM of_128_bits[] = {OSSL_PARAM_construct_size_t(OSSL_MAC_PARAM_SIZE, &bytes),
                                    OSSL_PARAM_construct_end()};
  sip_hash_ = Prepare("SIPHASH", of_128_bits);
}

const Crypto& Crypto::Get() {
  Construction& construction = Construction::Get();
  const Crypto* crypto = construction.crypto.load(std::memory_order_acquire);
  if (crypto == nullptr) {
    const MutexLock lock(construction.mutex);
    crypto = construction.crypto.load(std::memory_order_relaxed);
    if (crypto == nullptr) {
      crypto = new Crypto();  // never destroyed: threads may use it while the process ends
      construction.crypto.store(crypto, std::memory_order_release);
    }
  }
  return *crypto;
}

void Crypto::Authenticate(const EVP_MAC_CTX* prepared, std::string_view key, std::string_view message,
                          std::span<uint8_t> tag) {
  EVP_MAC_CTX* const context = EVP_MAC_CTX_dup(prepared);
  Check(context != nullptr, "EVP_MAC_CTX_dup");
  // A null pointer would mean the key of the last message.
  const char* const key_bytes = key.empty() ? "" : key.data();
  size_t written = 0;
  Check(EVP_MAC_init(context, reinterpret_cast<const uint8_t*>(key_bytes), key.size(), nullptr) == 1 &&
            EVP_MAC_update(context, reinterpret_cast<const uint8_t*>(message.data()), message.size()) == 1 &&
            EVP_MAC_final(context, tag.data(), &written, tag.size()) == 1 && written == tag.size(),
        "EVP_MAC_final");
  EVP_MAC_CTX_free(context);
}

void Crypto::Check(bool good, const char* call) {
  if (good) return;
  std::fprintf(stderr, "lockstep: libcrypto: %s failed\n", call);
  std::abort();
}

}  // namespace lockstep
