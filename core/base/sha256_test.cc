#include "core/base/sha256.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace lockstep {
namespace {

std::string Hex(const Digest& digest) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (uint8_t byte : digest) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

// The examples of FIPS 180-4, and the empty message. The message of 56 bytes needs one more block for its length.
TEST(Sha256Test, EqualsThePublishedExamples) {
  EXPECT_EQ(Hex(Sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Hex(Sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Hex(Sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(Hex(Sha256(std::string(1000000, 'a'))), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// RFC 4231, test cases 1, 2, 3, 6 and 7: keys shorter and longer than a block.
TEST(Sha256Test, HmacEqualsTheExamplesOfRfc4231) {
  EXPECT_EQ(Hex(HmacSha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(Hex(HmacSha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(Hex(HmacSha256(std::string(20, '\xaa'), std::string(50, '\xdd'))),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  EXPECT_EQ(Hex(HmacSha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  EXPECT_EQ(Hex(HmacSha256(std::string(131, '\xaa'),
                           "This is a test using a larger than block-size key and a larger than block-size data. The "
                           "key needs to be hashed before being used by the HMAC algorithm.")),
            "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST(Sha256Test, SameDigestSeesADifferenceInAnyByte) {
  const Digest digest = Sha256("x");
  EXPECT_TRUE(SameDigest(digest, Sha256("x")));
  for (size_t i = 0; i < digest.size(); ++i) {
    Digest other = digest;
    other[i] ^= 1;
    EXPECT_FALSE(SameDigest(digest, other)) << "byte " << i;
  }
}

TEST(Sha256Test, AStreamsPiecesMayHaveAnySize) {
  std::string message;
  for (int i = 0; i < 1000; ++i) message += static_cast<char>(i * i);
  for (const size_t piece : {1u, 63u, 64u, 65u, 1000u}) {
    Sha256Stream stream;
    for (size_t at = 0; at < message.size(); at += piece) stream.Update(std::string_view(message).substr(at, piece));
    stream.Update("");
    EXPECT_EQ(stream.Finish(), Sha256(message)) << "pieces of " << piece;
  }
}

// Python computes the same value: hmac.digest(b"", b"", "sha256").
TEST(Sha256Test, HmacHasNoKeyLeftFromAnotherMessage) {
  HmacSha256("key", "message");
  EXPECT_EQ(Hex(HmacSha256("", "")), "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
  EXPECT_EQ(Hex(HmacSha256({}, {})), "b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad");
}

TEST(Sha256Test, ManyThreadsComputeAtOnce) {
  const Digest wanted = HmacSha256("key", "message");
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 200; ++j) wrong += HmacSha256("key", "message") != wanted;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// Children are made while other threads compute. One of these computes the first digest of the process if no test ran
// before. A child that found a lock of its parent would wait forever; the alarm ends it.
TEST(Sha256Test, AForkComputesWhileThreadsOfItsParentDo) {
  std::atomic<bool> ends = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      while (!ends) HmacSha256("key", "message");
    });
  }
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      _exit(Hex(HmacSha256("Jefe", "what do ya want for nothing?")).starts_with("5bdcc146bf60754e") &&
                    Hex(Sha256("abc")).starts_with("ba7816bf")
                ? 0
                : 1);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  ends = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace lockstep
