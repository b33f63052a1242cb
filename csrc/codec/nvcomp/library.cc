#include "codec/nvcomp/library.h"

namespace jaxccomp::nvcomp {
namespace {

constexpr const char* kSonames[] = {kSoname};

struct Properties {
  uint32_t version = 0;
  uint32_t cuda_version = 0;
};

}  // namespace

OpenedLibrary::OpenedLibrary() : library_("nvcomp", kSonames) {
  Outcome (*properties)(Properties*) = nullptr;
  library_.Find("nvcompGetProperties", &properties);
  if (properties != nullptr) {
    Properties found;
    if (properties(&found) == kSuccess) version_ = found.version;
    if (version_ / 1000 != kMajorVersion) {
      missing_ = "nvCOMP " + std::to_string(kMajorVersion) + " is needed, and the one that is found "
                 "has version number " + std::to_string(version_);
      return;
    }
  }
  for (const FormatRow& row : Formats()) {
    Functions& f = functions_[static_cast<size_t>(row.format) - 1];
    const auto find = [&](const char* name, auto* function) {
      library_.Find((std::string("nvcompBatched") + row.symbol + name).c_str(), function);
    };
    find("CompressGetTempSize", &f.encode_temporary);
    find("CompressGetMaxOutputChunkSize", &f.encode_bound);
    find("CompressAsync", &f.encode);
    find("DecompressGetTempSize", &f.decode_temporary);
    find("DecompressAsync", &f.decode);
  }
  missing_ = library_.missing();
}

Status CheckLibrary() {
  const std::string missing = Library::Missing();
  return missing.empty() ? Status::Ok() : Status(Code::kUnavailable, missing + kRemedy);
}

}  // namespace jaxccomp::nvcomp
