// nvCOMP's functions, from a library found at run time.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "codec/library/found.h"
#include "codec/nvcomp/formats.h"
#include "common/dynamic_library.h"

namespace jaxccomp::nvcomp {

class OpenedLibrary {
 public:
  OpenedLibrary();
  const std::string& missing() const { return missing_; }
  const Functions& functions(Format format) const {
    return functions_[static_cast<size_t>(format) - 1];
  }
  // major * 1000 + minor * 100 + patch, such as 6000.
  uint32_t version() const { return version_; }

 private:
  DynamicLibrary library_;
  std::string missing_;
  uint32_t version_ = 0;
  std::array<Functions, kFormatCount> functions_;
};

using Library = library::Found<OpenedLibrary>;

inline constexpr const char* kRemedy = "; it runs on NVIDIA GPUs only, and needs nvCOMP: pip install "
                                       "'jaxccomp[cuda13]'";

// The error names the missing library and what to install.
Status CheckLibrary();

}  // namespace jaxccomp::nvcomp
