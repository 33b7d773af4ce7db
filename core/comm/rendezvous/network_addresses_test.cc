#include "core/comm/rendezvous/network_addresses.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

namespace lockstep {
namespace {

void ExpectAddress(const std::string& wanted, const std::string& address) {
  const Result<std::string> got = AddressOf(wanted);
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  EXPECT_EQ(*got, address) << wanted;
}

// Whether this machine can use IPv6 at all: containers often cannot.
bool HasV6Loopback() {
  sockaddr_in6 address = {};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool has = fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  if (fd >= 0) close(fd);
  return has;
}

sockaddr_storage V6(const char* text) {
  sockaddr_in6 address = {};
  address.sin6_family = AF_INET6;
  inet_pton(AF_INET6, text, &address.sin6_addr);
  sockaddr_storage storage = {};
  std::memcpy(&storage, &address, sizeof(address));
  return storage;
}

TEST(InterfaceTest, AnInterfaceAnAddressAndANetworkNameTheSame) {
  ExpectAddress("lo", "127.0.0.1");
  ExpectAddress("127.0.0.1", "127.0.0.1");
  ExpectAddress("127.0.0.0/8", "127.0.0.1");
  // The bits after the prefix are ignored. The prefix may be as long as the address, but not longer.
  ExpectAddress("127.9.9.9/8", "127.0.0.1");
  ExpectAddress("127.0.0.1/32", "127.0.0.1");
}

TEST(InterfaceTest, IPv6HasThreeSpellingsToo) {
  if (!HasV6Loopback()) GTEST_SKIP() << "this machine has no IPv6";
  ExpectAddress("::1", "::1");
  ExpectAddress("::1/128", "::1");
  ExpectAddress("0:0:0:0:0:0:0:1/127", "::1");
}

TEST(InterfaceTest, WhatIsNotOfThisMachineIsRefusedWithAListOfWhatIs) {
  for (const char* wanted : {"", "eth99", "203.0.113.1", "203.0.113.0/24", "2001:db8::1", "127.0.0.0/33", "127.0.0.0/",
                             "127.0.0.0/8x", "127.0.0.0/-1", "127.0.0.1:80", "localhost", "/8", "lo/8", "127.0.0.2"}) {
    const Status status = AddressOf(wanted).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << wanted;
    EXPECT_NE(status.message().find(std::string("'") + wanted + "'"), std::string::npos) << status.ToString();
    EXPECT_NE(status.message().find("lo (127.0.0.1"), std::string::npos) << status.ToString();
  }
}

// Without the scope, others could not know on which of their links the address is.
TEST(InterfaceTest, AnAddressOfALinkHasItsInterfaceAsScope) {
  const Result<std::string> link = AddressOf("fe80::/10");
  if (!link.ok()) GTEST_SKIP() << "this machine has no address of a link";
  const size_t percent = link->find('%');
  ASSERT_NE(percent, std::string::npos) << *link;
  ExpectAddress(*link, *link);
  ExpectAddress(link->substr(0, percent), *link);
}

TEST(InterfaceTest, AMappedAddressIsShownAsTheIPv4AddressThatItIs) {
  EXPECT_EQ(NumericAddress(V6("::ffff:10.0.0.7")), "10.0.0.7");
  EXPECT_EQ(NumericAddress(V6("fd00:0::7")), "fd00::7");
  EXPECT_EQ(NumericAddress(sockaddr_storage{}), "");
}

}  // namespace
}  // namespace lockstep
