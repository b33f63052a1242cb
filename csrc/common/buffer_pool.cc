#include "common/buffer_pool.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <utility>

#include "common/round_up.h"

namespace jaxccomp {
namespace {

constexpr int64_t kSmallestClassBytes = 4096;

}  // namespace

void BufferPool::Free::operator()(std::byte* p) const {
  if (source == nullptr) {
    std::free(p);
  } else {
    source->Free(p);
  }
}

int64_t BufferPool::TakenBytes(int64_t bytes) {
  if (bytes <= kSmallestClassBytes) return kSmallestClassBytes;
  // Size classes are whole pages, sixteen between successive powers of two.
  const auto power = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(bytes)));
  const int64_t step = std::max(power / 32, kSmallestClassBytes);
  return RoundUp(bytes, step);
}

BufferPool::Buffer BufferPool::Take(int64_t bytes) {
  const int64_t size = TakenBytes(bytes);
  auto& list = kept_[size];
  if (!list.empty()) {
    Buffer buffer = std::move(list.back());
    list.pop_back();
    kept_bytes_ -= size;
    return buffer;
  }
  if (source_ != nullptr) return Buffer(source_->Allocate(size), {source_});
  return Buffer(static_cast<std::byte*>(std::aligned_alloc(kSmallestClassBytes, size)));
}

void BufferPool::Give(Buffer buffer, int64_t bytes) {
  const int64_t size = TakenBytes(bytes);
  if (buffer == nullptr || kept_bytes_ + size > kKeptBytes) return;
  kept_bytes_ += size;
  kept_[size].push_back(std::move(buffer));
}

}  // namespace jaxccomp
