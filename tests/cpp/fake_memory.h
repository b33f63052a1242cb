// Memory of a fake GPU. It is mapped twice: at the addresses that programs get nobody may read or write, so
// that any touch by host code ends the test. Beside it, pinned memory of the host.
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

  // Whether it is this GPU's own.
  bool Covers(const void* address) const;
  // Where memory of the GPU may be touched.
  std::byte* Shadow(const void* address) const;
  // An address in the GPU's memory, of either mapping; others (pinned, the host's) as they are.
  std::byte* Reach(const void* address) const;
  void CheckPinned(const void* memory, int64_t bytes) const;

 private:
  std::byte* base_ = nullptr;     // what programs see
  std::byte* shadow_ = nullptr;
  mutable std::mutex mutex_;
  int64_t next_offset_ = 0;
  std::multimap<int64_t, std::byte*> free_;              // by size
  std::map<const std::byte*, int64_t> taken_, pinned_;   // size by address
};

}  // namespace jaxccomp::testing
