#include "lossless.h"

#include <cstdio>
#include <cstring>
#include <string>

#include "check.h"
#include "codec/lossless/layout.h"
#include "cuda/kernels/lossless/lossless.h"
#include "device.h"
#include "fixed_rate_cases.h"

namespace jaxccomp {
namespace {

using namespace testing;

constexpr DType kDTypes[] = {DType::kBFloat16, DType::kFloat16, DType::kFloat32};

Bytes OnCpu(DType dtype, const Bytes& values, int64_t count) {
  const Codec& codec = FindCodec("lossless");
  Workspace workspace;
  Bytes code(static_cast<size_t>(codec.MaxEncodedBytes(dtype, count)));
  const Result<int64_t> bytes =
      codec.Encode(dtype, values.data(), count, code, CodingContext(workspace));
  if (CHECK_OK(bytes)) code.resize(static_cast<size_t>(*bytes));
  return code;
}

// Values, encoded bytes and workspaces in device memory.
class OnGpu {
 public:
  OnGpu(DType dtype, int64_t count)
      : layout_(lossless::LayoutOf(dtype).layout),
        words_(count * lossless::LayoutOf(dtype).words),
        values_(static_cast<size_t>(count * SizeBytes(dtype))),
        code_(static_cast<size_t>(cuda::LosslessBoundBytes(layout_, words_))),
        size_(sizeof(int64_t)),
        status_(sizeof(int32_t)),
        workspace_(static_cast<size_t>(
            std::max(cuda::LosslessEncodeWorkspaceBytes(layout_, words_),
                     cuda::LosslessDecodeWorkspaceBytes(layout_, words_)))) {}

  const DeviceBytes& values() const { return values_; }
  void PutValues(const Bytes& values) { values_.Put(values); }
  void PutCode(const Bytes& code) { code_.Put(code); }

  cudaError_t Encode(cudaStream_t stream) const {
    return static_cast<cudaError_t>(cuda::LosslessEncode(
        {.layout = layout_,
         .words = words_,
         .src = values_.data(),
         .dst = code_.data(),
         .size = reinterpret_cast<int64_t*>(size_.data()),
         .workspace = workspace_.data()},
        stream));
  }
  cudaError_t Decode(int64_t code_bytes, cudaStream_t stream) const {
    return static_cast<cudaError_t>(cuda::LosslessDecode(
        {.layout = layout_,
         .words = words_,
         .payload = code_.data(),
         .payload_bytes = code_bytes,
         .dst = values_.data(),
         .status = reinterpret_cast<int32_t*>(status_.data()),
         .workspace = workspace_.data()},
        stream));
  }

  int64_t size() const { return As<int64_t>(size_); }
  bool valid() const { return As<int32_t>(status_) == 0; }
  Bytes Code() const {
    Bytes code = code_.Take();
    code.resize(static_cast<size_t>(std::clamp<int64_t>(size(), 0, std::ssize(code))));
    return code;
  }
  Bytes Values() const { return values_.Take(); }

 private:
  template <typename T>
  static T As(const DeviceBytes& from) {
    T value;
    std::memcpy(&value, from.Take().data(), sizeof(value));
    return value;
  }

  const lossless::Layout layout_;
  const int64_t words_;
  const DeviceBytes values_, code_, size_, status_, workspace_;
};

bool Equal(DType dtype, const Bytes& values, int64_t count, cudaStream_t stream) {
  const Bytes code = OnCpu(dtype, values, count);
  OnGpu gpu(dtype, count);
  gpu.PutValues(values);
  Cuda(gpu.Encode(stream), "LosslessEncode");
  bool equal = gpu.Code() == code;
  gpu.PutValues(Bytes(values.size()));
  gpu.PutCode(code);
  Cuda(gpu.Decode(std::ssize(code), stream), "LosslessDecode");
  equal &= gpu.valid() && gpu.Values() == values;
  return equal;
}

}  // namespace

Bytes Weights(DType dtype, int64_t count) {
  Floats values = Gaussian(count);
  for (float& v : values) v *= 0.02f;
  return AsDType(dtype, values);
}

void PutWeights(const Bytes& some, int64_t bytes, std::byte* to) {
  for (int64_t at = 0; at < bytes; at += kDistinctBytes) {
    const auto now = static_cast<size_t>(std::min(bytes - at, kDistinctBytes));
    Cuda(cudaMemcpy(to + at, some.data(), now, cudaMemcpyHostToDevice), "copy to the device");
  }
}

bool CompareLossless(cudaStream_t stream) {
  bool all = true;
  for (DType dtype : kDTypes) {
    int compared = 0, differ = 0;
    for (int64_t count : {1, 63, 1000, 1 << 14, (1 << 15) + 1, 100003, 1 << 20, 5000011}) {
      for (int kind = 0; kind <= kValueKinds; ++kind) {
        const Bytes values = kind == kValueKinds ? Weights(dtype, count)
                                                 : AsDType(dtype, CaseValues(kind, count));
        ++compared;
        differ += !Equal(dtype, values, count, stream);
      }
    }
    std::printf("{\"codec\": \"lossless\", \"dtype\": \"%s\", \"compared\": %d, \"differ\": %d}\n",
                std::string(Name(dtype)).c_str(), compared, differ);
    all &= differ == 0;
  }
  return all;
}

std::vector<Rates> MeasureLossless(cudaStream_t stream) {
  std::vector<Rates> measured;
  for (DType dtype : kDTypes) {
    const Bytes some = Weights(dtype, kDistinctBytes / SizeBytes(dtype));
    for (int64_t mebibytes : {1, 4, 16, 64, 256}) {
      const int64_t bytes = mebibytes << 20, count = bytes / SizeBytes(dtype);
      OnGpu gpu(dtype, count);
      PutWeights(some, bytes, gpu.values().data());
      const double encode =
          MedianSeconds(stream, [&] { Cuda(gpu.Encode(stream), "LosslessEncode"); });
      const int64_t code_bytes = gpu.size();
      const double decode =
          MedianSeconds(stream, [&] { Cuda(gpu.Decode(code_bytes, stream), "LosslessDecode"); });
      std::printf("{\"codec\": \"lossless\", \"dtype\": \"%s\", \"bytes\": %lld, \"ratio\": %.4f, "
                  "\"encode_gbps\": %.1f, \"decode_gbps\": %.1f}\n",
                  std::string(Name(dtype)).c_str(), static_cast<long long>(bytes),
                  static_cast<double>(bytes) / static_cast<double>(code_bytes),
                  static_cast<double>(bytes) / encode * 1e-9,
                  static_cast<double>(bytes) / decode * 1e-9);
      measured.push_back({dtype, bytes, static_cast<double>(bytes) / encode,
                          static_cast<double>(bytes) / decode});
    }
  }
  return measured;
}

}  // namespace jaxccomp
