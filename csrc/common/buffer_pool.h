// Scratch buffers that are used again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace jaxccomp {

// Buffers by size class, page-aligned in the host's memory. Not thread-safe: used under the engine's
// lock.
class BufferPool {
 public:
  // Where memory that is not the host's comes from.
  class Source {
   public:
    virtual std::byte* Allocate(int64_t bytes) = 0;  // null when there is none
    virtual void Free(std::byte* memory) = 0;

   protected:
    ~Source() = default;
  };
  struct Free {
    Source* source = nullptr;
    void operator()(std::byte* p) const;
  };
  using Buffer = std::unique_ptr<std::byte[], Free>;

  // Without a source, of the host's. The source outlives the pool's buffers.
  explicit BufferPool(Source* source = nullptr) : source_(source) {}

  // What Take(bytes) takes.
  static int64_t TakenBytes(int64_t bytes);
  // At least `bytes`, contents unspecified.
  Buffer Take(int64_t bytes);
  // `bytes` as given to Take. Kept for the next Take unless too much is kept already.
  void Give(Buffer buffer, int64_t bytes);

 private:
  static constexpr int64_t kKeptBytes = 512ll << 20;
  Source* const source_;
  std::map<int64_t, std::vector<Buffer>> kept_;
  int64_t kept_bytes_ = 0;
};

}  // namespace jaxccomp
