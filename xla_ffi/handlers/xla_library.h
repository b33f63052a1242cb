// The library that gives out XLA's communicators (xla_communicators/library.h), opened at run time: it
// needs a newer jaxlib than the engine does.
#pragma once

#include <string>

#include "common/status.h"
#include "xla_communicators/library.h"

namespace jaxccomp {

class XlaLibrary {
 public:
  // What AddLibraryPath calls it.
  static constexpr const char* kName = "jaxccomp_xla";

  // It must be of `version`, the engine's own.
  explicit XlaLibrary(const std::string& version);
  // The process's own, opened by the first call.
  static const XlaLibrary& Get();

  // Ok; or why it cannot be used, and what to install.
  const Status& status() const { return status_; }

  decltype(&jaxccomp_xla_request) request = nullptr;
  decltype(&jaxccomp_xla_get) get = nullptr;

 private:
  Status status_;
};

}  // namespace jaxccomp
