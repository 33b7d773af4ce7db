#include "core/comm/rendezvous/network_addresses.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <charconv>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/strings.h"

namespace lockstep {
namespace {

// One address of an interface that is up.
struct Own {
  std::string interface;
  sockaddr_storage address = {};
};

struct InterfacesDeleter {
  void operator()(ifaddrs* list) const { freeifaddrs(list); }
};

Result<std::vector<Own>> OwnAddresses() {
  ifaddrs* raw = nullptr;
  if (getifaddrs(&raw) != 0) return ErrnoStatus("interfaces: getifaddrs", errno);
  const std::unique_ptr<ifaddrs, InterfacesDeleter> list(raw);
  std::vector<Own> all;
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    Own own = {.interface = entry->ifa_name};
    std::memcpy(&own.address, entry->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    all.push_back(std::move(own));
  }
  return all;
}

// Null if the text is not a numeric address.
std::optional<sockaddr_storage> ParseNumeric(const std::string& text) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* list = nullptr;
  if (getaddrinfo(text.c_str(), nullptr, &hints, &list) != 0) return std::nullopt;
  sockaddr_storage address = {};
  std::memcpy(&address, list->ai_addr, list->ai_addrlen);
  freeaddrinfo(list);
  return address;
}

// The 4 or 16 bytes of an address.
std::string_view RawBytes(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address).sin_addr;
    return {reinterpret_cast<const char*>(&v4), sizeof(v4)};
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  return {reinterpret_cast<const char*>(&v6), sizeof(v6)};
}

// The interface to which a link-local address belongs; 0 if none is given, or if the address is not link-local.
uint32_t Scope(const sockaddr_storage& address) {
  return address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_scope_id : 0;
}

// Whether the first `bits` bits are the same.
bool InNetwork(const sockaddr_storage& address, const sockaddr_storage& network, size_t bits) {
  if (address.ss_family != network.ss_family) return false;
  const std::string_view a = RawBytes(address), b = RawBytes(network);
  for (size_t i = 0; i < bits; ++i) {
    const auto bit = [&](std::string_view bytes) { return (bytes[i / 8] >> (7 - i % 8)) & 1; };
    if (bit(a) != bit(b)) return false;
  }
  return true;
}

// The order of preference among an interface's addresses: the lowest is taken.
int Preference(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) return 0;
  return IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr) ? 2 : 1;
}

const Own* FindInterface(const std::vector<Own>& all, std::string_view name) {
  const Own* best = nullptr;
  for (const Own& own : all) {
    if (own.interface != name) continue;
    if (best == nullptr || Preference(own.address) < Preference(best->address)) best = &own;
  }
  return best;
}

// Matches an address (which is a network with all of its bits) or a network.
const Own* FindNetwork(const std::vector<Own>& all, std::string_view wanted) {
  const size_t slash = wanted.find('/');
  const std::optional<sockaddr_storage> network = ParseNumeric(std::string(wanted.substr(0, slash)));
  if (!network) return nullptr;
  size_t bits = 8 * RawBytes(*network).size();
  if (slash != std::string_view::npos) {
    const char* const end = wanted.data() + wanted.size();
    size_t said = 0;
    const auto [stop, error] = std::from_chars(wanted.data() + slash + 1, end, said);
    if (error != std::errc() || stop != end || said > bits) return nullptr;
    bits = said;
  }
  for (const Own& own : all) {
    const uint32_t scope = Scope(*network);
    if (InNetwork(own.address, *network, bits) && (scope == 0 || scope == Scope(own.address))) return &own;
  }
  return nullptr;
}

// "eth0 (10.0.0.7, fd00::7) and lo (127.0.0.1)".
std::string Describe(const std::vector<Own>& all) {
  std::vector<std::string> names, texts;
  for (const Own& own : all) {
    size_t i = 0;
    while (i < names.size() && names[i] != own.interface) ++i;
    if (i == names.size()) {
      names.push_back(own.interface);
      texts.emplace_back();
    }
    texts[i] += (texts[i].empty() ? "" : ", ") + NumericAddress(own.address);
  }
  for (size_t i = 0; i < names.size(); ++i) texts[i] = StrCat(names[i], " (", texts[i], ")");
  return texts.empty() ? "none" : JoinWithAnd(texts);
}

}  // namespace

Result<std::string> AddressOf(std::string_view wanted) {
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<Own> all, OwnAddresses());
  const Own* found = FindInterface(all, wanted);
  if (found == nullptr) found = FindNetwork(all, wanted);
  if (found != nullptr) return NumericAddress(found->address);
  return InvalidArgument(StrCat("interface '", wanted,
                                "' is not an interface, address or network (such as 10.0.0.0/8) of this machine; its "
                                "interfaces are ",
                                Describe(all)));
}

// If a socket takes both families, the kernel shows its IPv4 peers as mapped addresses.
std::string NumericAddress(const sockaddr_storage& address) {
  sockaddr_storage plain = address;
  if (address.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
      sockaddr_in v4 = {};
      v4.sin_family = AF_INET;
      std::memcpy(&v4.sin_addr, v6.sin6_addr.s6_addr + 12, 4);
      plain = {};
      std::memcpy(&plain, &v4, sizeof(v4));
    }
  } else if (address.ss_family != AF_INET) {
    return "";
  }
  const socklen_t length = plain.ss_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  char text[NI_MAXHOST];
  const bool readable = getnameinfo(reinterpret_cast<const sockaddr*>(&plain), length, text, sizeof(text), nullptr, 0,
                                    NI_NUMERICHOST) == 0;
  return readable ? text : "";
}

}  // namespace lockstep
