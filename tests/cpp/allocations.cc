#include "allocations.h"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace {
thread_local int64_t allocations = 0;

void* TryAllocate(std::size_t bytes, std::size_t alignment) {
  ++allocations;
  // aligned_alloc needs a multiple of the alignment.
  return alignment <= alignof(std::max_align_t)
             ? std::malloc(bytes)
             : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

void* Allocate(std::size_t bytes, std::size_t alignment) {
  void* p = TryAllocate(bytes, alignment);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
}  // namespace

int64_t jaxccomp::testing::Allocations() { return allocations; }

void* operator new(std::size_t bytes) { return Allocate(bytes, 0); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return Allocate(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return TryAllocate(bytes, 0);
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
