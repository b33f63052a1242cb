#include "fake_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "check.h"

namespace jaxccomp::testing {
namespace {

constexpr int64_t kMemoryBytes = int64_t{1} << 30;   // addresses; pages come with their first write

// All that there are.
std::mutex& AllMutex() {
  static std::mutex mutex;
  return mutex;
}
std::vector<FakeMemory*>& All() {
  static std::vector<FakeMemory*> all;
  return all;
}

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
  std::lock_guard<std::mutex> lock(AllMutex());
  All().push_back(this);
}

FakeMemory::~FakeMemory() {
  {
    std::lock_guard<std::mutex> lock(AllMutex());
    std::erase(All(), this);
  }
  for (const auto& [memory, bytes] : pinned_) std::free(const_cast<std::byte*>(memory));
  munmap(base_, kMemoryBytes);
  munmap(shadow_, kMemoryBytes);
}

bool FakeMemory::AllGivenBack() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return taken_.empty() && pinned_.empty() && shared_.empty() && imports_.empty();
}

std::byte* FakeMemory::Shadow(const void* device_memory) const {
  const auto offset = static_cast<const std::byte*>(device_memory) - base_;
  CHECK(offset >= 0 && offset < kMemoryBytes);
  return shadow_ + offset;
}

std::byte* FakeMemory::Reach(const void* address) const {
  const auto at = reinterpret_cast<uintptr_t>(address);
  const auto first = reinterpret_cast<uintptr_t>(base_);
  if (at >= first && at < first + kMemoryBytes) return shadow_ + (at - first);
  {
    std::lock_guard<std::mutex> lock(AllMutex());
    for (const FakeMemory* other : All()) {
      if (!other->Covers(address)) continue;
      std::lock_guard<std::mutex> own(mutex_);
      CHECK(IsIn(imported_, address, 1));
      return other->Shadow(address);
    }
  }
  return static_cast<std::byte*>(const_cast<void*>(address));
}

std::byte* FakeMemory::Open(void* address, int64_t bytes) {
  std::lock_guard<std::mutex> lock(AllMutex());
  for (const FakeMemory* each : All()) {
    if (!each->Covers(address)) continue;
    std::lock_guard<std::mutex> own(each->mutex_);
    CHECK(IsIn(each->shared_, address, bytes));
    return each->Shadow(address);
  }
  return static_cast<std::byte*>(address);
}

bool FakeMemory::Covers(const void* address) const {
  return address >= base_ && address < base_ + kMemoryBytes;
}

bool FakeMemory::IsIn(const Sizes& all, const void* memory, int64_t bytes) {
  const auto* const at = static_cast<const std::byte*>(memory);
  auto block = all.upper_bound(at);
  if (block == all.begin()) return false;
  --block;
  return at + bytes <= block->first + block->second;
}

std::byte* FakeMemory::TakeShared(int64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  bytes = (bytes + 255) / 256 * 256 + 256;
  if (next_offset_ + bytes > kMemoryBytes) return nullptr;
  std::byte* const memory = base_ + next_offset_;
  next_offset_ += bytes;
  shared_[memory] = bytes - 256;
  return memory;
}

void FakeMemory::GiveSharedBack(std::byte* memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  CHECK_EQ(shared_.erase(memory), 1u);
}

int64_t FakeMemory::SharedBytes(const std::byte* memory) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = shared_.find(memory);
  return found == shared_.end() ? 0 : found->second;
}

bool FakeMemory::Import(const std::byte* memory, int64_t bytes) {
  {
    std::lock_guard<std::mutex> lock(AllMutex());
    if (std::none_of(All().begin(), All().end(), [&](const FakeMemory* other) {
          return other->SharedBytes(memory) >= bytes && bytes > 0;
        })) {
      return false;
    }
  }
  std::lock_guard<std::mutex> lock(mutex_);
  ++imports_[memory];
  imported_[memory] = bytes;
  return true;
}

int64_t FakeMemory::AnySharedBytes(const std::byte* memory) {
  std::lock_guard<std::mutex> lock(AllMutex());
  int64_t bytes = 0;
  for (const FakeMemory* other : All()) bytes = std::max(bytes, other->SharedBytes(memory));
  return bytes;
}

void FakeMemory::ImportAll() {
  std::lock_guard<std::mutex> lock(AllMutex());
  for (const FakeMemory* other : All()) {
    if (other == this) continue;
    std::scoped_lock both(mutex_, other->mutex_);
    imported_.insert(other->shared_.begin(), other->shared_.end());
  }
}

void FakeMemory::Release(const std::byte* memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (CHECK(imports_.contains(memory)) && --imports_[memory] == 0) imports_.erase(memory);
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

void FakeMemory::CheckPinned(const void* code, int64_t bytes) const {
  std::lock_guard<std::mutex> lock(mutex_);
  CHECK(IsIn(pinned_, code, bytes));
}

void FakeMemory::CheckValues(const void* values, int64_t bytes) const {
  std::lock_guard<std::mutex> lock(mutex_);
  CHECK(Covers(values) || IsIn(imported_, values, bytes));
}

void FakeMemory::CheckCode(const void* code, int64_t bytes, bool read) const {
  std::lock_guard<std::mutex> lock(mutex_);
  CHECK(IsIn(pinned_, code, bytes) || IsIn(shared_, code, bytes) ||
        (read && IsIn(imported_, code, bytes)));
}

}  // namespace jaxccomp::testing
