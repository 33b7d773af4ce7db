# OpenSSL's libcrypto, for digests and authentication codes (core/base/crypto.h): the system's static library (Debian's
# libssl-dev). A shared one would not do. TensorFlow's library exports BoringSSL's functions, which have the same names
# and another ABI, and Parquet's exports those of another OpenSSL; the loader could take these.
#
# The linker takes the first definition of a name, so lockstep_crypto comes before TensorFlow's and Parquet's libraries.
# None of its symbols is exported, so that those libraries keep their own.
set(OPENSSL_USE_STATIC_LIBS TRUE)
find_package(OpenSSL 3.0 QUIET COMPONENTS Crypto)
if(NOT TARGET OpenSSL::Crypto OR NOT OPENSSL_CRYPTO_LIBRARY MATCHES "\\.a$")
  message(FATAL_ERROR "OpenSSL: no headers and static libcrypto of version 3.0 or later found: apt-get install libssl-dev")
endif()

add_library(lockstep_crypto INTERFACE)
target_link_libraries(lockstep_crypto INTERFACE OpenSSL::Crypto)
target_link_options(lockstep_crypto INTERFACE LINKER:--exclude-libs,libcrypto.a)
