// A pool of scratch buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace jaxccomp {

// Keeps buffers for reuse, by size class. Buffers in host memory are page-aligned. Not thread-safe.
class BufferPool {
 public:
  // Allocates memory that is not pageable host memory, such as pinned memory.
  class Source {
   public:
    virtual std::byte* Allocate(int64_t bytes) = 0;  // null on failure
    virtual void Free(std::byte* memory) = 0;

   protected:
    ~Source() = default;
  };
  struct Free {
    Source* source = nullptr;
    void operator()(std::byte* p) const;
  };
  using Buffer = std::unique_ptr<std::byte[], Free>;

  // Without a source, buffers are pageable host memory. The source must outlive them.
  explicit BufferPool(Source* source = nullptr) : source_(source) {}

  // The size of the buffer that Take(bytes) returns.
  static int64_t TakenBytes(int64_t bytes);
  // A buffer of at least `bytes`, uninitialised; null if there is no memory.
  Buffer Take(int64_t bytes);
  // Keeps a buffer for the next Take, or frees it if the pool is full. `bytes`: the argument of Take.
  void Give(Buffer buffer, int64_t bytes);

 private:
  static constexpr int64_t kKeptBytes = 512ll << 20;
  Source* const source_;
  std::map<int64_t, std::vector<Buffer>> kept_;
  int64_t kept_bytes_ = 0;
};

}  // namespace jaxccomp
