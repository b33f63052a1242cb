// Words of pinned memory that kernels and streams reach: flags, verdicts, checksums. Several threads
// may take and give them.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "cuda/host/api.h"

namespace jaxccomp::cuda {

class MappedWords {
 public:
  explicit MappedWords(CudaApi* api) : api_(api) {}

  // `count` words that lie together, of any value; null when there is no memory, with CUDA's error.
  uint32_t* Take(size_t count, int* error);
  // When nothing is going to write there. `count` as taken.
  void Give(uint32_t* words, size_t count);

 private:
  static constexpr size_t kBlockWords = 16 << 10;
  static size_t ClassOf(size_t count) { return std::bit_width(std::bit_ceil(count)) - 1; }

  CudaApi* const api_;
  std::mutex mutex_;
  std::array<std::vector<uint32_t*>, 64> free_;   // of 2^i words each
  uint32_t* block_ = nullptr;
  size_t block_left_ = 0;
};

}  // namespace jaxccomp::cuda
