// Memory of which a test knows who touches it: pages that hold up whoever comes to them until the test lets them go
// on, and memory that nobody may touch any more since it has been given back.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstddef>

namespace jaxccomp::testing {

class WatchedMemory {
 public:
  static constexpr size_t kPage = 4096;

  // Zeros.
  explicit WatchedMemory(size_t bytes);
  ~WatchedMemory();
  WatchedMemory(const WatchedMemory&) = delete;
  WatchedMemory& operator=(const WatchedMemory&) = delete;

  std::byte* data() const { return data_; }

  // Who touches the page with that byte waits there for Release.
  void Stall(size_t offset);
  // Whether somebody does.
  bool stalls() const { return stalls_; }
  void Release();

  // To be called when the engine says that it is done with it.
  void GiveBack();
  // Whether anybody has touched it since.
  bool touched() const { return touched_; }

 private:
  friend struct FaultHandler;

  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  std::atomic<std::byte*> stalling_{nullptr};   // the page
  std::atomic<bool> stalls_ = false, given_back_ = false, touched_ = false;
};

}  // namespace jaxccomp::testing
