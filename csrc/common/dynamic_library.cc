#include "common/dynamic_library.h"

#include <dlfcn.h>

#include <map>
#include <mutex>

namespace jaxccomp {
namespace {

struct AddedPaths {
  std::mutex mutex;
  std::map<std::string, std::vector<std::string>, std::less<>> by_name;
};

AddedPaths& Added() {
  static AddedPaths added;
  return added;
}

}  // namespace

void AddLibraryPath(std::string_view name, std::string_view path) {
  AddedPaths& added = Added();
  std::lock_guard lock(added.mutex);
  auto& paths = added.by_name[std::string(name)];
  paths.emplace(paths.begin(), path);
}

std::vector<std::string> AddedLibraryPaths(std::string_view name) {
  AddedPaths& added = Added();
  std::lock_guard lock(added.mutex);
  const auto found = added.by_name.find(name);
  return found != added.by_name.end() ? found->second : std::vector<std::string>();
}

DynamicLibrary::DynamicLibrary(std::string_view name, std::span<const char* const> sonames) {
  std::vector<std::string> candidates = AddedLibraryPaths(name);
  candidates.insert(candidates.end(), sonames.begin(), sonames.end());
  for (const std::string& path : candidates) {
    handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ != nullptr) {
      path_ = path;
      missing_.clear();
      return;
    }
    const char* why = dlerror();
    missing_.append(missing_.empty() ? "" : "; ").append(why != nullptr ? why : path);
  }
  missing_ = "the library " + std::string(name) + " is not found: " + missing_;
}

void* DynamicLibrary::Address(const char* symbol) {
  if (!is_open()) return nullptr;
  void* at = dlsym(handle_, symbol);
  if (at == nullptr && missing_.empty()) missing_ = path_ + " does not offer " + symbol;
  return at;
}

}  // namespace jaxccomp
