#include "watched_memory.h"

#include <csignal>
#include <cstdint>
#include <ctime>

#include "check.h"

namespace jaxccomp::testing {
namespace {

// All that there are: a signal handler may take no lock. One that has gone leaves its place free.
constexpr size_t kMost = 256;
std::atomic<WatchedMemory*> all[kMost];
struct sigaction before;

}  // namespace

struct FaultHandler {
  static void OnFault(int, siginfo_t* info, void*) {
    auto* const at = static_cast<std::byte*>(info->si_addr);
    for (std::atomic<WatchedMemory*>& each : all) {
      WatchedMemory* const memory = each.load();
      if (memory == nullptr || at < memory->data_ || at >= memory->data_ + memory->bytes_) continue;
      if (memory->given_back_) {
        memory->touched_ = true;
        static_cast<void>(mprotect(memory->data_, memory->bytes_, PROT_READ | PROT_WRITE));
        return;
      }
      memory->stalls_ = true;
      const timespec pause{.tv_sec = 0, .tv_nsec = 1'000'000};
      while (memory->stalling_ != nullptr && !memory->given_back_) nanosleep(&pause, nullptr);
      return;
    }
    sigaction(SIGSEGV, &before, nullptr);   // which gets it next, from the same instruction
  }
};

WatchedMemory::WatchedMemory(size_t bytes) : bytes_((bytes + kPage - 1) / kPage * kPage) {
  static const bool installed = [] {
    struct sigaction action = {};
    action.sa_sigaction = &FaultHandler::OnFault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;   // several threads may wait in it
    return sigaction(SIGSEGV, &action, &before) == 0;
  }();
  CHECK(installed);
  void* const made = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(made != MAP_FAILED);
  data_ = static_cast<std::byte*>(made);
  for (std::atomic<WatchedMemory*>& each : all) {
    WatchedMemory* none = nullptr;
    if (each.compare_exchange_strong(none, this)) return;
  }
  CHECK(false);   // too many
}

WatchedMemory::~WatchedMemory() {
  for (std::atomic<WatchedMemory*>& each : all) {
    WatchedMemory* own = this;
    if (each.compare_exchange_strong(own, nullptr)) break;
  }
  munmap(data_, bytes_);
}

void WatchedMemory::Stall(size_t offset) {
  std::byte* const page = data_ + offset / kPage * kPage;
  stalling_ = page;
  CHECK_EQ(mprotect(page, kPage, PROT_NONE), 0);
}

void WatchedMemory::Release() {
  std::byte* const page = stalling_;
  CHECK_EQ(mprotect(page, kPage, PROT_READ | PROT_WRITE), 0);
  stalling_ = nullptr;
}

void WatchedMemory::GiveBack() {
  given_back_ = true;
  CHECK_EQ(mprotect(data_, bytes_, PROT_NONE), 0);
}

}  // namespace jaxccomp::testing
