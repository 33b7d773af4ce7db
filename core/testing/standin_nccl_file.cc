#include "core/testing/standin_nccl_file.h"

namespace lockstep::testing {

const char* StandinNcclFile() { return LOCKSTEP_STANDIN_NCCL; }

}  // namespace lockstep::testing
