#include "core/testing/emulator/fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>

// Functions of the sanitizers: null in programs without them. So one source serves all builds.
extern "C" {
[[gnu::weak]] void __sanitizer_start_switch_fiber(void** fake_stack, const void* stack, size_t bytes);
[[gnu::weak]] void __sanitizer_finish_switch_fiber(void* fake_stack, const void** stack, size_t* bytes);
[[gnu::weak]] void* __tsan_get_current_fiber();
[[gnu::weak]] void* __tsan_create_fiber(unsigned flags);
[[gnu::weak]] void __tsan_destroy_fiber(void* fiber);
[[gnu::weak]] void __tsan_switch_to_fiber(void* fiber, unsigned flags);
[[gnu::weak]] void __tsan_acquire(void* address);
[[gnu::weak]] void __tsan_release(void* address);
[[gnu::weak]] void AnnotateIgnoreReadsBegin(const char* file, int line);
[[gnu::weak]] void AnnotateIgnoreReadsEnd(const char* file, int line);
[[gnu::weak]] void AnnotateIgnoreWritesBegin(const char* file, int line);
[[gnu::weak]] void AnnotateIgnoreWritesEnd(const char* file, int line);

// Saves the registers that a function has to keep, stores the stack's top in *save, and continues on the stack `load`.
void lockstep_switch_stack(void** save, void* load);
}

asm(R"(
.text
.globl lockstep_switch_stack
.hidden lockstep_switch_stack
.type lockstep_switch_stack, @function
lockstep_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size lockstep_switch_stack, .-lockstep_switch_stack
)");

namespace lockstep::emulator {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kStackBytes = 64 << 10;
constexpr int kSavedRegisters = 6;
constexpr unsigned kOrdersNothing = 1;  // __tsan_switch_to_fiber_no_sync

// The fiber that this thread enters.
constinit thread_local Fiber* entered = nullptr;

}  // namespace

Fiber::Fiber() {
  void* const memory = ::mmap(nullptr, kPage + kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || ::mprotect(memory, kPage, PROT_NONE) != 0) {
    std::perror("emulator: the stack of a fiber");
    std::abort();
  }
  stack_ = static_cast<char*>(memory) + kPage;
  if (__tsan_create_fiber != nullptr) context_ = __tsan_create_fiber(0);
}

Fiber::~Fiber() {
  if (context_ != nullptr) __tsan_destroy_fiber(context_);
  ::munmap(stack_ - kPage, kPage + kStackBytes);
}

// The first switch to the stack pops the registers, and returns into Enter. There, as after any call, the stack is 8
// bytes off from a multiple of 16.
void Fiber::Start(const std::function<void()>* body) {
  body_ = body;
  auto* const end = reinterpret_cast<uintptr_t*>(stack_ + kStackBytes);
  end[-1] = 0;
  end[-2] = reinterpret_cast<uintptr_t>(&Enter);
  top_ = end - 2 - kSavedRegisters;
  for (int i = 0; i < kSavedRegisters; ++i) static_cast<uintptr_t*>(top_)[i] = 0;
}

void Fiber::Enter() {
  Fiber* const fiber = entered;
  if (__sanitizer_finish_switch_fiber != nullptr) {
    __sanitizer_finish_switch_fiber(nullptr, &fiber->thread_stack_, &fiber->thread_stack_bytes_);
  }
  (*fiber->body_)();
  fiber->SwitchToThread(true);
  std::abort();  // an ended fiber was resumed
}

void Fiber::Resume() {
  entered = this;
  if (__sanitizer_start_switch_fiber != nullptr) {
    __sanitizer_start_switch_fiber(&thread_fake_stack_, stack_, kStackBytes);
  }
  if (context_ != nullptr) {
    thread_context_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(context_, kOrdersNothing);
  }
  lockstep_switch_stack(&thread_top_, top_);
  if (__sanitizer_finish_switch_fiber != nullptr) __sanitizer_finish_switch_fiber(thread_fake_stack_, nullptr, nullptr);
}

void Fiber::Yield() { SwitchToThread(false); }

void Fiber::SwitchToThread(bool ends) {
  if (__sanitizer_start_switch_fiber != nullptr) {
    __sanitizer_start_switch_fiber(ends ? nullptr : &fake_stack_, thread_stack_, thread_stack_bytes_);
  }
  if (context_ != nullptr) __tsan_switch_to_fiber(thread_context_, kOrdersNothing);
  lockstep_switch_stack(&top_, thread_top_);
  if (__sanitizer_finish_switch_fiber != nullptr) {
    __sanitizer_finish_switch_fiber(fake_stack_, &thread_stack_, &thread_stack_bytes_);
  }
}

namespace {

constinit std::mutex pool_mutex;
std::vector<std::unique_ptr<Fiber>>& Pool() {
  static auto& pool = *new std::vector<std::unique_ptr<Fiber>>();
  return pool;
}

}  // namespace

std::vector<std::unique_ptr<Fiber>> FiberPool::Take(int count) {
  std::vector<std::unique_ptr<Fiber>> fibers;
  {
    const std::lock_guard lock(pool_mutex);
    auto& pool = Pool();
    for (; !pool.empty() && static_cast<int>(fibers.size()) < count; pool.pop_back()) {
      fibers.push_back(std::move(pool.back()));
    }
  }
  while (static_cast<int>(fibers.size()) < count) fibers.push_back(std::make_unique<Fiber>());
  return fibers;
}

void FiberPool::Return(std::vector<std::unique_ptr<Fiber>> fibers) {
  const std::lock_guard lock(pool_mutex);
  for (auto& fiber : fibers) Pool().push_back(std::move(fiber));
}

void FiberPool::Clear() {
  const std::lock_guard lock(pool_mutex);
  Pool().clear();
}

bool HasThreadSanitizer() { return __tsan_create_fiber != nullptr; }

void Release(void* address) {
  if (__tsan_release != nullptr) __tsan_release(address);
}

void Acquire(void* address) {
  if (__tsan_acquire != nullptr) __tsan_acquire(address);
}

UnseenAccess::UnseenAccess() {
  if (AnnotateIgnoreReadsBegin == nullptr) return;
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
}

UnseenAccess::~UnseenAccess() {
  if (AnnotateIgnoreReadsBegin == nullptr) return;
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
}

}  // namespace lockstep::emulator
