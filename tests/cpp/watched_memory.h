// Memory of which a test knows who touches it: pages that hold up whoever comes to them until the test lets them go
// on, and memory that nobody may touch any more since it has been given back.
#pragma once

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

  std::byte* data() const;

  // Who touches the page with that byte waits there for Release.
  void Stall(size_t offset);
  // Whether somebody does.
  bool stalls() const;
  void Release();

  // To be called when the engine says that it is done with it.
  void GiveBack();
  // Whether anybody has touched it since.
  bool touched() const;

 private:
  struct Region;
  friend struct FaultHandler;

  Region* region_ = nullptr;
};

}  // namespace jaxccomp::testing
