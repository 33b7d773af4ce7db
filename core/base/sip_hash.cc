#include "core/base/sip_hash.h"

#include <openssl/crypto.h>

#include "core/base/crypto.h"

namespace lockstep {

SipTag SipHash(const SipKey& key, std::string_view message) {
  SipTag tag;
  Crypto::Authenticate(Crypto::Get().sip_hash(), {reinterpret_cast<const char*>(key.data()), key.size()}, message, tag);
  return tag;
}

bool SameTag(const SipTag& a, const SipTag& b) { return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0; }

}  // namespace lockstep
