// Memory whose accesses a test controls: an access to a stalled page waits until the test releases it, and accesses
// after GiveBack are detected.
#pragma once

#include <cstddef>

namespace jaxccomp::testing {

class WatchedMemory {
 public:
  static constexpr size_t kPage = 4096;

  // Filled with zeros.
  explicit WatchedMemory(size_t bytes);
  ~WatchedMemory();
  WatchedMemory(const WatchedMemory&) = delete;
  WatchedMemory& operator=(const WatchedMemory&) = delete;

  std::byte* data() const;

  // Blocks accesses to the page with that byte until Release.
  void Stall(size_t offset);
  // Whether a thread is blocked.
  bool stalls() const;
  void Release();   // may be called again

  // Call this when the engine reports that it is done with the memory.
  void GiveBack();
  // Whether the memory was accessed after GiveBack.
  bool touched() const;

 private:
  struct Region;
  friend struct FaultHandler;

  Region* region_ = nullptr;
};

}  // namespace jaxccomp::testing
