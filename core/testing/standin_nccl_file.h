#pragma once

namespace lockstep::testing {

// Returns the path of the library that stands in for libnccl.so.2. Only standin_nccl_file.cc is compiled with it, so
// that compilations of tests can be taken from another checkout.
const char* StandinNcclFile();

}  // namespace lockstep::testing
