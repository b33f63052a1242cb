// A library that is opened at run time, so that one binary serves machines with and without it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace jaxccomp {

// Adds `path` as the first place to look for the library `name`, such as "zfp". For libraries in Python wheels, which
// are not on the loader's path.
void AddLibraryPath(std::string_view name, std::string_view path);
// The added paths of the library, the latest first.
std::vector<std::string> AddedLibraryPaths(std::string_view name);

class DynamicLibrary {
 public:
  // Opens the first library that loads: among the added paths, the latest first, then among `sonames`. Never closes it,
  // since callers keep its functions. If none loads, missing() says why.
  DynamicLibrary(std::string_view name, std::span<const char* const> sonames);

  bool is_open() const { return handle_ != nullptr; }
  // Empty if the library is open and has all symbols that were looked up.
  const std::string& missing() const { return missing_; }

  // Sets `*found` to the function or object of this name, or leaves it if there is none.
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
