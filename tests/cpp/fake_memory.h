// Memory of a fake GPU, mapped twice. The addresses that programs get are protected, so that any access by host code
// ends the test. Also allocates pinned host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace jaxccomp::testing {

class FakeMemory {
 public:
  FakeMemory();
  ~FakeMemory();

  std::byte* Take(int64_t bytes);
  void GiveBack(std::byte* memory);
  std::byte* TakePinned(int64_t bytes);
  void GivePinnedBack(std::byte* memory);
  bool AllGivenBack() const;

  // Whether `address` lies in this GPU's memory.
  bool Covers(const void* address) const;
  // The accessible address of GPU memory.
  std::byte* Shadow(const void* address) const;
  // The accessible address of GPU memory in either mapping; pinned and host memory: `address` itself.
  std::byte* Reach(const void* address) const;
  void CheckPinned(const void* memory, int64_t bytes) const;

 private:
  std::byte* base_ = nullptr;     // the protected mapping
  std::byte* shadow_ = nullptr;
  mutable std::mutex mutex_;
  int64_t next_offset_ = 0;
  std::multimap<int64_t, std::byte*> free_;              // by size
  std::map<const std::byte*, int64_t> taken_, pinned_;   // size by address
};

}  // namespace jaxccomp::testing
