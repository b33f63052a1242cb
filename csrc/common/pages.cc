#include "common/pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace jaxccomp {
namespace {

constexpr int64_t kHugePageBytes = 2 << 20;
constexpr size_t kReservedBytes = size_t{8} << 30;

}  // namespace

bool RetainFreedMemory() {
#if defined(__GLIBC__)
  // Large blocks come from the heap, not from mmap, and the heap's top is never trimmed.
  return mallopt(M_MMAP_MAX, 0) == 1 && mallopt(M_TRIM_THRESHOLD, -1) == 1 &&
         mallopt(M_TOP_PAD, 64 << 20) == 1;
#else
  return false;
#endif
}

// glibc can do this itself, but only if the environment says so before the program starts
// (GLIBC_TUNABLES=glibc.malloc.hugetlb=1).
void UseHugePagesInHeap() {
  // AddressSanitizer's malloc allocates pages for the whole block at once.
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)
  // Shared by all engines of the process, each of which calls this under a lock of its own.
  static std::atomic<const std::byte*> reserved_end = nullptr;
  static std::atomic<bool> reserving = false;
  if (static_cast<const std::byte*>(sbrk(0)) <= reserved_end.load(std::memory_order_relaxed)) return;
  if (reserving.exchange(true)) return;   // another engine reserves it now
  // Reserves addresses only: memory is taken when it is first written to.
  const auto physical_bytes = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) *
                              static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t bytes = std::min(kReservedBytes, physical_bytes / 4);
  if (void* const block = std::malloc(bytes); block != nullptr) {
    AdviseHugePages(block, static_cast<int64_t>(bytes));
    std::free(block);
    reserved_end.store(static_cast<const std::byte*>(sbrk(0)), std::memory_order_relaxed);
  }
  reserving = false;
#endif
}

void AdviseHugePages(void* data, int64_t bytes) {
#if defined(MADV_HUGEPAGE)
  const auto first = reinterpret_cast<uintptr_t>(data);
  const uintptr_t begin = (first + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  const uintptr_t end = (first + bytes) / kHugePageBytes * kHugePageBytes;
  if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

}  // namespace jaxccomp
