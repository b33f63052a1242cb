#include "fake_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <iterator>

#include "check.h"

namespace jaxccomp::testing {
namespace {

constexpr int64_t kMemoryBytes = int64_t{1} << 30;   // address space; pages come with writes

}  // namespace

FakeMemory::FakeMemory() {
  const int file = memfd_create("fake_memory", 0);
  CHECK(file >= 0 && ftruncate(file, kMemoryBytes) == 0);
  const auto map = [&](int access) {
    void* const at = mmap(nullptr, kMemoryBytes, access, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (at == MAP_FAILED) std::abort();
    return static_cast<std::byte*>(at);
  };
  base_ = map(PROT_NONE);
  shadow_ = map(PROT_READ | PROT_WRITE);
  close(file);
}

FakeMemory::~FakeMemory() {
  for (const auto& [memory, bytes] : pinned_) std::free(const_cast<std::byte*>(memory));
  munmap(base_, kMemoryBytes);
  munmap(shadow_, kMemoryBytes);
}

bool FakeMemory::AllGivenBack() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return taken_.empty() && pinned_.empty();
}

std::byte* FakeMemory::Shadow(const void* device_memory) const {
  const auto offset = static_cast<const std::byte*>(device_memory) - base_;
  CHECK(offset >= 0 && offset < kMemoryBytes);
  return shadow_ + offset;
}

std::byte* FakeMemory::Reach(const void* address) const {
  if (Covers(address)) return Shadow(address);
  return static_cast<std::byte*>(const_cast<void*>(address));
}

bool FakeMemory::Covers(const void* address) const {
  const auto at = reinterpret_cast<uintptr_t>(address), first = reinterpret_cast<uintptr_t>(base_);
  return at >= first && at < first + kMemoryBytes;
}

std::byte* FakeMemory::Take(int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  bytes = (bytes + 255) / 256 * 256 + 256;
  std::byte* memory = nullptr;
  if (auto found = free_.find(bytes); found != free_.end()) {
    memory = found->second;
    free_.erase(found);
  } else {
    if (next_offset_ + bytes > kMemoryBytes) return nullptr;
    memory = base_ + next_offset_;
    next_offset_ += bytes;
  }
  std::memset(shadow_ + (memory - base_), 0xcd, static_cast<size_t>(bytes));
  taken_[memory] = bytes;
  return memory;
}

void FakeMemory::GiveBack(std::byte* memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = taken_.find(memory);
  if (!CHECK(found != taken_.end())) return;
  std::memset(shadow_ + (memory - base_), 0xdd, static_cast<size_t>(found->second));
  free_.emplace(found->second, memory);
  taken_.erase(found);
}

std::byte* FakeMemory::TakePinned(int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  bytes = (bytes + 255) / 256 * 256;
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(256, static_cast<size_t>(bytes)));
  std::memset(memory, 0xce, static_cast<size_t>(bytes));
  pinned_[memory] = bytes;
  return memory;
}

void FakeMemory::GivePinnedBack(std::byte* memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  CHECK_EQ(pinned_.erase(memory), 1u);
  std::free(memory);
}

void FakeMemory::CheckPinned(const void* memory, int64_t bytes) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto* const at = static_cast<const std::byte*>(memory);
  const auto after = pinned_.upper_bound(at);
  if (!CHECK(after != pinned_.begin())) return;
  const auto& [block, size] = *std::prev(after);
  CHECK(at + bytes <= block + size);
}

}  // namespace jaxccomp::testing
