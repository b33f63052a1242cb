// A library that is looked for at run time, so that one binary serves machines with and without it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace jaxccomp {

// Also looks for the library called `name`, such as "zfp", at `path`, before all others. For
// libraries that come in a Python wheel and are not on the loader's path.
void AddLibraryPath(std::string_view name, std::string_view path);
// The paths added for that library, the latest first.
std::vector<std::string> AddedLibraryPaths(std::string_view name);

class DynamicLibrary {
 public:
  // Opens the first that loads of the added paths, the latest first, and of `sonames`. It is never
  // closed: its functions are kept. Not open if none loads; `missing` then says why.
  DynamicLibrary(std::string_view name, std::span<const char* const> sonames);

  bool is_open() const { return handle_ != nullptr; }
  // Empty while the library is open and has all that was looked up.
  const std::string& missing() const { return missing_; }

  // Fills in the function or object of this name; leaves it as it is where there is none.
  template <typename T>
  void Find(const char* symbol, T** found) {
    if (void* at = Address(symbol)) *found = reinterpret_cast<T*>(at);
  }

 private:
  void* Address(const char* symbol);

  void* handle_ = nullptr;
  std::string path_;
  std::string missing_;
};

}  // namespace jaxccomp
