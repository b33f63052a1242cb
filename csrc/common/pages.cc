#include "common/pages.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace jaxccomp {
namespace {

constexpr int64_t kHugePageBytes = 2 << 20;
constexpr size_t kReservedBytes = size_t{8} << 30;
constexpr int64_t kRetainedBytes = int64_t{1} << 30;   // allowed besides as much as is in use

// Where the part of the heap ends that has huge pages. Shared by all engines of the process.
std::atomic<const std::byte*> reserved_end = nullptr;

// The process's memory, without files and shared memory; 0 if it is unknown.
int64_t AnonymousBytes() {
  int64_t all = 0, resident = 0, shared = 0;
  if (!(std::ifstream("/proc/self/statm") >> all >> resident >> shared)) return 0;
  return (resident - shared) * sysconf(_SC_PAGESIZE);
}

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

void LimitRetainedMemory() {
#if defined(__GLIBC__)
  // As in <malloc.h> since glibc 2.33, which the build may not have. The counts of the older mallinfo are int.
  struct Mallinfo2 {
    size_t arena, ordblks, smblks, hblks, hblkhd, usmblks, fsmblks, uordblks, fordblks, keepcost;
  };
  static const auto mallinfo2 = reinterpret_cast<Mallinfo2 (*)()>(dlsym(RTLD_DEFAULT, "mallinfo2"));
  if (mallinfo2 == nullptr) return;
  // Anonymous memory that malloc does not manage.
  static std::atomic<int64_t> other_bytes = 0;
  const int64_t bytes = AnonymousBytes(), used_bytes = static_cast<int64_t>(mallinfo2().uordblks);
  if (bytes - other_bytes.load(std::memory_order_relaxed) <= 2 * used_bytes + kRetainedBytes) return;
  malloc_trim(64 << 20);
  other_bytes.store(std::max<int64_t>(AnonymousBytes() - used_bytes, 0), std::memory_order_relaxed);
  reserved_end.store(nullptr, std::memory_order_relaxed);   // the heap may have become shorter
#endif
}

// glibc can do this itself, but only if the environment says so before the program starts
// (GLIBC_TUNABLES=glibc.malloc.hugetlb=1).
void UseHugePagesInHeap() {
  // AddressSanitizer's malloc allocates pages for the whole block at once.
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__)
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
