// Scratch memory that is kept between calls, so that repeated coding does not allocate. Each coding thread
// has one; one call at a time uses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace jaxccomp {

class Workspace {
 public:
  // The workspace's only T, created at first use.
  template <typename T>
  T& Get() {
    for (const auto& [key, object] : objects_) {
      if (key == &kKey<T>) return *static_cast<T*>(object.get());
    }
    auto made = std::make_shared<T>();
    objects_.emplace_back(&kKey<T>, made);
    return *made;
  }

  // At least `bytes` bytes, aligned to 64, with undefined contents. Buffers of different `Use` do not
  // overlap. Valid until the next call with this `Use`.
  template <typename Use>
  std::byte* Bytes(int64_t bytes) {
    return Get<Buffer<Use>>().Reserve(bytes);
  }

 private:
  template <typename T>
  static inline const char kKey = 0;

  struct Free {
    void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t(64)); }
  };

  template <typename Use>
  struct Buffer {
    std::byte* Reserve(int64_t bytes) {
      if (bytes > capacity_bytes) {
        memory.reset();   // free before allocating: the peak is lower
        capacity_bytes = 0;
        memory.reset(new (std::align_val_t(64)) std::byte[static_cast<size_t>(bytes)]);
        capacity_bytes = bytes;
      }
      return memory.get();
    }
    std::unique_ptr<std::byte[], Free> memory;
    int64_t capacity_bytes = 0;
  };

  std::vector<std::pair<const char*, std::shared_ptr<void>>> objects_;
};

}  // namespace jaxccomp
