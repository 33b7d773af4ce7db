#pragma once

#include <string>
#include <vector>

#include "core/base/loadable.h"
#include "core/device/comm/nccl_api.h"

namespace lockstep::device {

// A job on device 0: its ranks are processes of this host, and each compares collectives of tensors in the device's
// memory with the CPU's, bit for bit.
struct ExchangePlan {
  std::string backend;
  int ranks;
  bool native_sums;     // NCCL takes the sums itself
  bool may_be_refused;  // NCCL may refuse these ranks as an invalid usage

  std::string name() const;  // "nccl, 2 ranks"
};

// The result of a plan. All texts but the name are empty in a job whose collectives equal the CPU's.
struct Exchange {
  std::string name;
  std::string failure;  // the first error or difference
  std::string refusal;  // NCCL's error, if the plan allows that it refuses the ranks, and it has
  std::string missing;  // the places tried, if NCCL is not installed; the job did not run
  std::string nccl;     // "22809 (PATH)": the version of NCCL and its place; empty also without NCCL
};

// Returns NCCL with one rank, which takes the sums itself, so that its kernels run; NCCL with two ranks, which NCCL
// refuses on one device; and the backend 'staged' with two ranks.
std::vector<ExchangePlan> AllExchanges();

// Runs a plan for at most `limit_s` and the few seconds that Process allows. The process must not have used a device
// before. NCCL is missing only if `nccl` names no file: a file that a person names has to exist.
Exchange CheckExchange(const ExchangePlan& plan, const LibraryPlace& place, const NcclPlace& nccl, double limit_s);

}  // namespace lockstep::device
