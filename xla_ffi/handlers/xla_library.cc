#include "handlers/xla_library.h"

#include "common/dynamic_library.h"

namespace jaxccomp {
namespace {

// Where it lies beside the engine's own libraries; Python packages name their own paths.
constexpr const char* kSonames[] = {"libjaxccomp_xla.so"};

constexpr const char* kRemedy =
    "It comes with jaxccomp[cuda13] and jaxccomp[cuda12] of the engine's version";

}  // namespace

XlaLibrary::XlaLibrary(const std::string& version) {
  DynamicLibrary library(kName, kSonames);
  decltype(&jaxccomp_xla_version) found = nullptr;
  library.Find("jaxccomp_xla_version", &found);
  library.Find("jaxccomp_xla_request", &request);
  library.Find("jaxccomp_xla_get", &get);
  if (!library.missing().empty()) {
    status_ = {Code::kUnavailable, library.missing() + ". " + kRemedy};
  } else if (found() != version) {
    status_ = {Code::kFailedPrecondition, std::string("the library for XLA's communicators is of "
                                                      "jaxccomp ") +
                                              found() + ", and the engine of " + version + ". " +
                                              kRemedy};
  }
}

const XlaLibrary& XlaLibrary::Get() {
  static const auto* own = new XlaLibrary(JAXCCOMP_VERSION);   // XLA's threads may outlive statics
  return *own;
}

}  // namespace jaxccomp
