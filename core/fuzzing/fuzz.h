#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// A fuzz target: what reads bytes that somebody else wrote, fed with bytes that nobody should have written. It lies
// beside the source it feeds, as x_fuzz.cc, is a program of its own, and defines the two functions of `Target`:
//
//   namespace lockstep::fuzzing {
//   std::vector<std::string> Seeds() { return {Encode(Hello{1, 2, 3, "note"})}; }
//   int Fuzz(const uint8_t* data, size_t size) {
//     const auto hello = DecodeHello(Bytes(data, size));
//     if (hello) Require(Encode(*hello) == Bytes(data, size), "what is decoded is what was encoded");
//     return 0;
//   }
//   }  // namespace lockstep::fuzzing
//
// It is built in one of two ways, and doesn't know which. For `make test` with a driver of ours (seeded_driver.cc):
// seeds, then a few thousand mutations of them, the same ones each time. For `make fuzz` with clang's libFuzzer
// (libfuzzer_driver.cc) and the address and undefined behaviour sanitizers, for as long as one likes.
//
// What a target shows: no input makes it crash, hang, or take more memory than the driver grants; and what it requires.
namespace lockstep::fuzzing {

// To be defined by the target. One input; returns 0. Nothing of it may outlive the call but what all inputs share.
int Fuzz(const uint8_t* data, size_t size);
// To be defined by the target. Inputs to begin with, well-formed ones: mutations of them get further than noise.
// Generated, so that they follow the format when it changes.
std::vector<std::string> Seeds();

inline std::string_view Bytes(const uint8_t* data, size_t size) { return {reinterpret_cast<const char*>(data), size}; }

// Ends the process, which is how a fuzzer is told of a finding, with `what` should have been.
void Require(bool holds, std::string_view what);

// A number of an input, to choose by: below `end`; takes its bytes away. 0 where there are none left.
uint32_t Take(std::string_view* bytes, uint32_t end);

// Mutation `number` of `seeds`: one of them with one to eight changes, or a part of one in another. The same for the
// same arguments, on every machine. `most`: bytes.
std::string Mutate(const std::vector<std::string>& seeds, uint64_t random_seed, uint64_t number, size_t most = 1 << 20);

}  // namespace lockstep::fuzzing
