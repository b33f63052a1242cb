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

  // Shared memory (Device::AllocateShared): others may read it, when they have imported it.
  std::byte* TakeShared(int64_t bytes);
  void GiveSharedBack(std::byte* memory);
  int64_t SharedBytes(const std::byte* memory) const;   // 0: none
  // False where nobody shares that.
  bool Import(const std::byte* memory, int64_t bytes);
  void Release(const std::byte* memory);
  // Of whoever shares it.
  static int64_t AnySharedBytes(const std::byte* memory);
  // All that anybody shares now.
  void ImportAll();

  // Where a library that takes memory of devices may touch it: of anybody's shared memory, or the host's.
  static std::byte* Open(void* address, int64_t bytes);

  // Whether it is this device's own.
  bool Covers(const void* address) const;
  // Where memory of the device may be touched.
  std::byte* Shadow(const void* device_memory) const;
  // An address in device memory, of either mapping, or in what was imported; others (pinned, the
  // host's) as they are.
  std::byte* Reach(const void* address) const;
  // A code's place: must be pinned memory, shared memory of the device's own or, if it is only read,
  // imported.
  void CheckCode(const void* code, int64_t bytes, bool read) const;
  void CheckPinned(const void* code, int64_t bytes) const;
  // Values that are merged: the device's own, or imported.
  void CheckValues(const void* values, int64_t bytes) const;

 private:
  using Sizes = std::map<const std::byte*, int64_t>;
  static bool IsIn(const Sizes& all, const void* memory, int64_t bytes);

  std::byte* base_ = nullptr;     // what the engine sees
  std::byte* shadow_ = nullptr;
  mutable std::mutex mutex_;
  int64_t next_offset_ = 0;
  std::multimap<int64_t, std::byte*> free_;                 // by size
  Sizes taken_, pinned_, shared_, imported_;                // size by address
  std::map<const std::byte*, int> imports_;
};

}  // namespace jaxccomp::testing
