// Scratch memory that outlives calls, so that coding allocates nothing once it has run. One per
// thread that codes; a call uses it alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace jaxccomp {

class Workspace {
 public:
  // The workspace's only T, made by its first use.
  template <typename T>
  T& Get() {
    for (const auto& [key, object] : objects_) {
      if (key == &kKey<T>) return *static_cast<T*>(object.get());
    }
    auto made = std::make_shared<T>();
    objects_.emplace_back(&kKey<T>, made);
    return *made;
  }

  // At least `bytes` bytes, aligned to 64, of what was left there. `Use` says what for: memory for
  // different uses does not overlap. Valid until the next call for this use.
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
        memory.reset();   // not both at once
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
