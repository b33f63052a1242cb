// Memory that communication touches: scratch buffers that are used again, and what keeps the
// kernel from handing out fresh zeroed pages for every result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace jaxccomp {

// Tells the C library to keep freed memory in the process instead of returning it to the
// kernel. XLA allocates each result anew; without this a 64 MiB result costs 16384 page faults,
// several times the time of writing it. False when the C library has no such setting.
bool RetainFreedMemory();

// Asks for huge pages behind the heap, also where it will grow next: results lie there when freed
// memory is retained. A process that reads another one's memory pins page after page, so that
// 4 KiB pages more than halve the speed of large transfers. To be called now and then, since the
// heap may have grown beyond; costs next to nothing when it has not.
void UseHugePagesInHeap();

// Asks for huge pages behind [data, data + bytes), before its first write; a hint.
void AdviseHugePages(void* data, int64_t bytes);

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
