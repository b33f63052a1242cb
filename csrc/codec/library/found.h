// The singleton of a library's class, created once the library is found.
#pragma once

#include <memory>
#include <mutex>
#include <string>

namespace jaxccomp::library {

// `L` opens its library in its constructor; missing() says why it cannot be used. Failures are not
// cached: the library may be installed, or its path added, later.
template <typename L>
class Found {
 public:
  static std::string Missing() {
    std::lock_guard lock(mutex_);
    if (library_ != nullptr) return "";
    auto library = std::make_unique<L>();
    if (!library->missing().empty()) return library->missing();
    library_ = library.release();   // never freed: codecs use it
    return "";
  }

  // Call after Missing() has returned "".
  static const L& Get() { return *library_; }

 private:
  static inline std::mutex mutex_;
  static inline const L* library_ = nullptr;
};

}  // namespace jaxccomp::library
