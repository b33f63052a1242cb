#include "device/shared_arena.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/memory.h"

namespace jaxccomp {

std::shared_ptr<SharedArena::Block> SharedArena::Take(int64_t wanted) {
  const int64_t size =
      (std::max<int64_t>(wanted, 1) + kAlignment - 1) / kAlignment * kAlignment;
  const auto found = std::find_if(free_.begin(), free_.end(),
                                  [&](const auto& room) { return room.second >= size; });
  if (found == free_.end()) return nullptr;
  const auto [offset, room] = *found;
  free_.erase(found);
  if (room > size) free_[offset + size] = room - size;
  taken_bytes_ += size;
  return std::make_shared<Block>(this, offset, size);
}

void SharedArena::Give(int64_t offset, int64_t size) {
  taken_bytes_ -= size;
  auto next = free_.upper_bound(offset);
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      size += before->second;
      free_.erase(before);
    }
  }
  if (next != free_.end() && offset + size == next->first) {
    size += next->second;
    free_.erase(next);
  }
  free_[offset] = size;
}

SharedArena* SharedArenas::Provide(Device* device, int64_t bytes) {
  for (const auto& arena : all_) {
    if (arena->device == device) return arena.get();
  }
  std::byte* const memory = device->AllocateShared(bytes);
  if (memory == nullptr) return nullptr;
  return all_.emplace_back(std::make_unique<SharedArena>(device, memory, bytes)).get();
}

std::shared_ptr<SharedArena::Block> SharedArenas::Take(Device* device, int64_t bytes) {
  for (const auto& arena : all_) {
    if (arena->device == device) return arena->Take(bytes);
  }
  return nullptr;
}

void SharedArenas::Forget(const std::set<Device*>& stopped) {
  for (auto& arena : all_) {
    if (stopped.contains(arena->device) || arena->taken_bytes() > 0) {
      KeepForEver(std::move(arena));
    } else {
      arena->device->FreeShared(arena->base);
    }
  }
  all_.clear();
}

}  // namespace jaxccomp
