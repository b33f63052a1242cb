// The one object of a library's class, made once the library is found.
#pragma once

#include <memory>
#include <mutex>
#include <string>

namespace jaxccomp::library {

// `L` opens its library when constructed and says in missing() why it cannot be used. A failure is
// not remembered: the library may be installed, or its path be added, later.
template <typename L>
class Found {
 public:
  static std::string Missing() {
    std::lock_guard lock(mutex_);
    if (library_ != nullptr) return "";
    auto library = std::make_unique<L>();
    if (!library->missing().empty()) return library->missing();
    library_ = library.release();   // for good: codecs use it
    return "";
  }

  // Once Missing() has said nothing.
  static const L& Get() { return *library_; }

 private:
  static inline std::mutex mutex_;
  static inline const L* library_ = nullptr;
};

}  // namespace jaxccomp::library
