#include "core/base/sha256.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include "core/base/crypto.h"

namespace lockstep {

Digest Sha256(std::string_view message) {
  Sha256Stream stream;
  stream.Update(message);
  return stream.Finish();
}

Sha256Stream::Sha256Stream() : context_(EVP_MD_CTX_new()) {
  Crypto::Check(context_ != nullptr && EVP_DigestInit_ex2(context_.get(), Crypto::Get().sha256(), nullptr) == 1,
                "EVP_DigestInit_ex2");
}

void Sha256Stream::Update(std::string_view piece) {
  Crypto::Check(EVP_DigestUpdate(context_.get(), piece.data(), piece.size()) == 1, "EVP_DigestUpdate");
}

Digest Sha256Stream::Finish() {
  Digest digest;
  Crypto::Check(EVP_DigestFinal_ex(context_.get(), digest.data(), nullptr) == 1, "EVP_DigestFinal_ex");
  return digest;
}

void Sha256Stream::Free::operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }

Digest HmacSha256(std::string_view key, std::string_view message) {
  Digest digest;
  Crypto::Authenticate(Crypto::Get().hmac_sha256(), key, message, digest);
  return digest;
}

bool SameDigest(const Digest& a, const Digest& b) { return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0; }

}  // namespace lockstep
