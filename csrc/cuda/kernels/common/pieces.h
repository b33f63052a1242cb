// Divides a workspace.
#pragma once

#include <cstdint>

namespace jaxccomp::cuda {

// Hands out pieces of a workspace, aligned to 16 bytes. With a null base it only counts bytes.
class Pieces {
 public:
  explicit Pieces(void* base) : base_(static_cast<uint8_t*>(base)) {}

  template <typename T>
  T* Take(int64_t count) {
    T* const at = reinterpret_cast<T*>(base_ + bytes_);
    bytes_ += (count * static_cast<int64_t>(sizeof(T)) + 15) / 16 * 16;
    return at;
  }
  int64_t bytes() const { return bytes_; }

 private:
  uint8_t* base_;
  int64_t bytes_ = 0;
};

}  // namespace jaxccomp::cuda
