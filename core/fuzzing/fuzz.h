#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// A fuzz target feeds a reader of foreign bytes with bytes that no correct writer produces. It lies beside the source
// that it tests, as x_fuzz.cc, and is a program of its own. It defines these two functions.
// ```cpp
// namespace lockstep::fuzzing {
// std::vector<std::string> Seeds() { return {Encode(Hello{1, 2, 3, "note"})}; }
// int Fuzz(const uint8_t* data, size_t size) {
//   const auto hello = DecodeHello(Bytes(data, size));
//   if (hello) Require(Encode(*hello) == Bytes(data, size), "what is decoded is what was encoded");
//   return 0;
// }
// }  // namespace lockstep::fuzzing
// ```
// It is built in one of two ways, which do not concern its code. For `make test` our own driver (seeded_driver.cc) runs
// the seeds and then a few thousand mutations of them, the same ones each time. For `make fuzz` clang's libFuzzer
// (libfuzzer_driver.cc) runs it with the address and undefined behaviour sanitizers, for as long as you like.
//
// A target shows that no input makes it crash, hang or take more memory than the driver grants, and that its own
// requirements hold.
namespace lockstep::fuzzing {

// Runs one input and returns 0. Defined by the target. Only state that all inputs share may outlive the call.
int Fuzz(const uint8_t* data, size_t size);
// Returns well-formed inputs to start with; mutations of them get further than noise. Defined by the target. Seeds are
// generated, so that they follow the format when it changes.
std::vector<std::string> Seeds();

inline std::string_view Bytes(const uint8_t* data, size_t size) { return {reinterpret_cast<const char*>(data), size}; }

// Ends the process unless `holds`, which is how a fuzzer detects a finding. `what` names the requirement.
void Require(bool holds, std::string_view what);

// Takes a number below `end` from the input, to choose by, and removes its bytes. Returns 0 if no bytes are left.
uint32_t Take(std::string_view* bytes, uint32_t end);

// Returns mutation `number` of `seeds`: one seed with one to eight changes, or a part of one inside another, of at most
// `most` bytes. The result is the same for the same arguments on every machine.
std::string Mutate(const std::vector<std::string>& seeds, uint64_t random_seed, uint64_t number, size_t most = 1 << 20);

}  // namespace lockstep::fuzzing
