#include "watched_memory.h"

#include <sys/mman.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>

#include "check.h"

namespace jaxccomp::testing {

// Signal handlers of any thread read regions, so they are reused and never freed.
struct WatchedMemory::Region {
  std::atomic<bool> taken{false};
  std::atomic<std::byte*> data{nullptr};   // null: unused
  std::atomic<size_t> bytes{0};
  std::atomic<std::byte*> stalling{nullptr};   // the blocked page
  std::atomic<bool> stalls{false}, given_back{false}, touched{false};
};

struct FaultHandler {
  static constexpr size_t kMaxRegions = 256;
  static inline WatchedMemory::Region regions[kMaxRegions];
  static inline struct sigaction before;

  static void OnFault(int, siginfo_t* info, void*) {
    auto* const at = static_cast<std::byte*>(info->si_addr);
    for (WatchedMemory::Region& region : regions) {
      std::byte* const data = region.data;
      if (data == nullptr || at < data || at >= data + region.bytes) continue;
      if (region.given_back) {
        region.touched = true;
        static_cast<void>(mprotect(data, region.bytes, PROT_READ | PROT_WRITE));
        return;
      }
      region.stalls = true;
      const timespec pause{.tv_sec = 0, .tv_nsec = 1'000'000};
      while (region.stalling != nullptr && !region.given_back) nanosleep(&pause, nullptr);
      return;
    }
    sigaction(SIGSEGV, &before, nullptr);   // the instruction faults again, for the previous handler
  }
};

WatchedMemory::WatchedMemory(size_t bytes) {
  static const bool installed = [] {
    struct sigaction action = {};
    action.sa_sigaction = &FaultHandler::OnFault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;   // several threads may wait in the handler
    return sigaction(SIGSEGV, &action, &FaultHandler::before) == 0;
  }();
  CHECK(installed);
  bytes = (bytes + kPage - 1) / kPage * kPage;
  void* const made = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(made != MAP_FAILED);
  for (Region& region : FaultHandler::regions) {
    if (region.taken.exchange(true)) continue;
    region.stalling = nullptr;
    region.stalls = region.given_back = region.touched = false;
    region.bytes = bytes;
    region.data = static_cast<std::byte*>(made);
    region_ = &region;
    return;
  }
  CHECK(false);   // more regions than kMaxRegions
}

WatchedMemory::~WatchedMemory() {
  munmap(region_->data.exchange(nullptr), region_->bytes);
  region_->taken = false;
}

std::byte* WatchedMemory::data() const { return region_->data; }
bool WatchedMemory::stalls() const { return region_->stalls; }
bool WatchedMemory::touched() const { return region_->touched; }

void WatchedMemory::Stall(size_t offset) {
  std::byte* const page = data() + offset / kPage * kPage;
  region_->stalling = page;
  CHECK_EQ(mprotect(page, kPage, PROT_NONE), 0);
}

void WatchedMemory::Release() {
  std::byte* const page = region_->stalling;
  if (page == nullptr) return;
  CHECK_EQ(mprotect(page, kPage, PROT_READ | PROT_WRITE), 0);
  region_->stalling = nullptr;
}

void WatchedMemory::GiveBack() {
  region_->given_back = true;
  CHECK_EQ(mprotect(data(), region_->bytes, PROT_NONE), 0);
}

}  // namespace jaxccomp::testing
