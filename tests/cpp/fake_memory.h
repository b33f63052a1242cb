// Memory of a fake device. It is mapped twice: at the addresses that the engine gets nobody may read or
// write, so that any touch by host code ends the test. Beside it, pinned memory of the host.
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

  std::byte* Take(int64_t bytes);    // null when there is none
  void GiveBack(std::byte* memory);
  std::byte* TakePinned(int64_t bytes);
  void GivePinnedBack(std::byte* memory);
  bool AllGivenBack() const;

  // Where memory of the device may be touched.
  std::byte* Shadow(const void* device_memory) const;
  // An address in device memory, of either mapping; others (pinned, the host's) as they are.
  std::byte* Reach(const void* address) const;
  // A code's place: must be pinned memory.
  void CheckPinned(const void* code, int64_t bytes) const;

 private:
  std::byte* base_ = nullptr;     // what the engine sees
  std::byte* shadow_ = nullptr;
  mutable std::mutex mutex_;
  int64_t next_offset_ = 0;
  std::multimap<int64_t, std::byte*> free_;                 // by size
  std::map<const std::byte*, int64_t> taken_, pinned_;      // size by address
};

}  // namespace jaxccomp::testing
