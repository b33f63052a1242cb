// The codecs "nvcomp.*" on the host: only their sizes, and an error for host data.
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "codec/nvcomp/formats.h"
#include "codec/nvcomp/library.h"
#include "codec/rows.h"
#include "common/dynamic_library.h"

namespace jaxccomp {
namespace nvcomp {
namespace {

// Why there is no GPU: no NVIDIA driver, or the driver finds none. Empty if there is one.
std::string WhyNoGpu() {
  static constexpr const char* kSonames[] = {"libcuda.so.1"};
  DynamicLibrary driver("cuda", kSonames);
  int (*initialize)(unsigned) = nullptr;
  int (*count)(int*) = nullptr;
  driver.Find("cuInit", &initialize);
  driver.Find("cuDeviceGetCount", &count);
  if (!driver.missing().empty()) return "there is no NVIDIA driver";
  int gpus = 0;
  if (initialize(0) != 0 || count(&gpus) != 0 || gpus == 0) return "there is no NVIDIA GPU";
  return "";
}

class NvcompCodec final : public Codec {
 public:
  NvcompCodec(const CodecOptions& options, const Spec& spec)
      : Codec({.spec = options.spec(),
               .lossless = true,
               .runs_on_host = false,
               .dtypes = kAllDTypes}),
        spec_(spec) {}

  int64_t MaxEncodedBytes(DType dtype, int64_t count) const override {
    return nvcomp::MaxEncodedBytes(spec_, dtype, count);
  }
  int64_t MinEncodedBytes(DType dtype, int64_t count) const override {
    return nvcomp::MinEncodedBytes(spec_, dtype, count);
  }

 private:
  Result<int64_t> DoEncode(DType, const void*, int64_t, std::byte*,
                           const CodingContext&) const override {
    return NotOnHost();
  }
  Status DoDecode(DType, std::span<const std::byte>, void*, int64_t,
                  const CodingContext&) const override {
    return NotOnHost();
  }

  Status NotOnHost() const {
    return {Code::kUnimplemented, "codec '" + traits().spec + "' runs on NVIDIA GPUs only, and these "
                                  "values lie on the host; take another one, such as 'lossless', or "
                                  "move them to a GPU"};
  }

  const Spec spec_;
};

std::unique_ptr<const Codec> Make(const CodecOptions& options) {
  return std::make_unique<NvcompCodec>(options, *ReadSpec(options.spec()));
}

// Why this machine cannot use these codecs: no GPU or no nvCOMP. Empty if it can.
std::string WhyMissing() {
  static std::mutex mutex;
  static bool gpu = false;
  {
    std::lock_guard lock(mutex);
    if (!gpu) {
      if (std::string why = WhyNoGpu(); !why.empty()) return why + kRemedy;
      gpu = true;
    }
  }
  return CheckLibrary().message();
}

}  // namespace
}  // namespace nvcomp

std::span<const CodecInfo> NvcompRows() {
  static const std::vector<CodecInfo> rows = [] {
    std::vector<CodecInfo> codecs;
    for (const nvcomp::FormatRow& row : nvcomp::Formats()) {
      codecs.push_back({.name = row.name,
                        .description = row.description,
                        .ratio = row.ratio,
                        .lossless = true,
                        .dtypes = kAllDTypes,
                        .options = row.options,
                        .make = &nvcomp::Make,
                        .missing = &nvcomp::WhyMissing});
    }
    return codecs;
  }();
  return rows;
}

}  // namespace jaxccomp
