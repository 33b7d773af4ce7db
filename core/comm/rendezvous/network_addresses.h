#pragma once

#include <string>
#include <string_view>

#include "core/base/status.h"

struct sockaddr_storage;

namespace lockstep {

// Finds the address of this machine that a user means, by which other hosts reach it. Returns the numeric address,
// without a port, as getaddrinfo takes it ("10.0.0.7", "fd00::7", "fe80::7%eth0"). `wanted` is one of
//
//   eth0            an interface: its IPv4 address; if it has none, its IPv6 address that is valid beyond the link;
//                   if it has none either, its link-local address, with the interface as scope
//   10.0.0.7, ::1   an address of this machine
//   10.0.0.0/8      a network: the first address of this machine in it. If several interfaces have one, the first of
//                   them that is up, in the kernel's order
//
// Interfaces that are down have no addresses here. INVALID_ARGUMENT, with a list of the interfaces and their addresses,
// if `wanted` names none of them or cannot be read. INTERNAL if the kernel does not list them. It asks the kernel at
// each call and resolves no names. Thread-safe.
Result<std::string> AddressOf(std::string_view wanted);

// A socket's address as such a text: numeric, without its port, a mapped IPv4 address as IPv4. "" if it is neither IPv4
// nor IPv6. Thread-safe.
std::string NumericAddress(const sockaddr_storage& address);

}  // namespace lockstep
