#include "cuda/host/mapped_words.h"

#include <algorithm>

namespace jaxccomp::cuda {

uint32_t* MappedWords::Take(size_t count, int* error) {
  std::lock_guard lock(mutex_);
  auto& free = free_[ClassOf(count)];
  if (!free.empty()) {
    uint32_t* const words = free.back();
    free.pop_back();
    return words;
  }
  const size_t size = std::bit_ceil(count);
  if (size > block_left_) {
    const size_t all = std::max(size, kBlockWords);
    std::byte* memory = nullptr;
    *error = api_->AllocatePinned(&memory, static_cast<int64_t>(all * sizeof(uint32_t)));
    if (*error != CudaApi::kSuccess) return nullptr;
    block_ = reinterpret_cast<uint32_t*>(memory);
    block_left_ = all;
  }
  uint32_t* const words = block_;
  block_ += size;
  block_left_ -= size;
  return words;
}

void MappedWords::Give(uint32_t* words, size_t count) {
  std::lock_guard lock(mutex_);
  free_[ClassOf(count)].push_back(words);
}

}  // namespace jaxccomp::cuda
