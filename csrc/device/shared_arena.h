// A device's shared memory, taken once and handed out in blocks: what exported messages lie in, and those
// that MPI moves from and to devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "device/device.h"

namespace jaxccomp {

// Not thread-safe: used under the engine's lock. Outlives its blocks.
class SharedArena {
 public:
  static constexpr int64_t kAlignment = 256;

  SharedArena(Device* of, std::byte* memory, int64_t bytes) : device(of), base(memory), bytes(bytes) {
    free_[0] = bytes;
  }
  SharedArena(const SharedArena&) = delete;
  SharedArena& operator=(const SharedArena&) = delete;

  // Free again when its last owner is gone.
  class Block {
   public:
    Block(SharedArena* arena, int64_t offset, int64_t bytes)
        : offset(offset), bytes(bytes), arena_(arena) {}
    ~Block() { arena_->Give(offset, bytes); }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    std::byte* memory() const { return arena_->base + offset; }

    const int64_t offset;
    const int64_t bytes;

   private:
    SharedArena* const arena_;
  };
  // Null when there is no room for it.
  std::shared_ptr<Block> Take(int64_t bytes);
  int64_t taken_bytes() const { return taken_bytes_; }

  Device* const device;
  std::byte* const base;
  const int64_t bytes;

 private:
  void Give(int64_t offset, int64_t bytes);

  std::map<int64_t, int64_t> free_;   // sizes by offset; no two of them touch
  int64_t taken_bytes_ = 0;
};

// Those of all devices, by number. Set aside before the first call, since that may wait for all of a
// device.
class SharedArenas {
 public:
  // The device's; set aside now if it has none. Null when there is not so much memory.
  SharedArena* Provide(Device* device, int64_t bytes);
  // Null when there is no room.
  std::shared_ptr<SharedArena::Block> Take(Device* device, int64_t bytes);
  const std::vector<std::unique_ptr<SharedArena>>& all() const { return all_; }
  // Gives the memory back, but for that of `stopped` devices and where blocks are in use.
  void Forget(const std::set<Device*>& stopped);

 private:
  std::vector<std::unique_ptr<SharedArena>> all_;
};

}  // namespace jaxccomp
