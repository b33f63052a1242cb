#include "fixed_rate.h"

#include <cstdio>
#include <cstring>
#include <string>

#include "check.h"
#include "cuda/kernels/fixed_rate/fixed_rate.h"
#include "device.h"
#include "fixed_rate_cases.h"

namespace jaxccomp {
namespace {

using namespace testing;

constexpr RandomKey kKey = {0x123456789abcdef, 0, 0};
// The key's step as kernels read it.
Bytes StepBytes() {
  Bytes bytes(sizeof(kKey.step));
  std::memcpy(bytes.data(), &kKey.step, bytes.size());
  return bytes;
}
const uint32_t* WordsOf(const DeviceBytes& bytes) {
  return reinterpret_cast<const uint32_t*>(bytes.data());
}

constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

// All 16-bit patterns, to compare the GPU's conversion instructions on every half value.
Bytes AllHalves() {
  Bytes bytes(2 << 16);
  for (uint32_t raw = 0; raw < 1 << 16; ++raw) {
    const auto half = static_cast<uint16_t>(raw);
    std::memcpy(&bytes[2 * raw], &half, sizeof(half));
  }
  return bytes;
}

class Comparison {
 public:
  Comparison(const FixedRateCase& c, DType dtype, cudaStream_t stream)
      : case_(c), dtype_(dtype), stream_(stream), step_(StepBytes(), 0) {}

  // `offset`: bytes from an aligned address to the encoded bytes.
  void Values(const Bytes& values, int64_t count, size_t offset) {
    const Bytes code = EncodeValues(case_.spec, dtype_, values.data(), count, kKey, 0);
    const DeviceBytes from(values, 0), to(code.size(), offset);
    CHECK_OK(cuda::Encode(case_.codec, dtype_, from.data(), count, to.data(), WordsOf(step_),
                          stream_));
    Note(to.Take() == code, "bytes");
    DecodeAndSum(code, count, offset);
  }

  void DecodeAndSum(const Bytes& code, int64_t count, size_t offset) {
    Workspace workspace;
    const CodingContext context(workspace);
    const Codec& codec = FindCodec(case_.spec);
    const DeviceBytes encoded(code, offset);
    Bytes decoded(static_cast<size_t>(count * SizeBytes(dtype_)));
    CHECK_OK(codec.Decode(dtype_, code, decoded.data(), count, context));
    const DeviceBytes out(decoded.size());
    CHECK_OK(cuda::DecodeInto(case_.codec, dtype_, encoded.data(), dtype_, out.data(), count, stream_));
    Note(out.Take() == decoded, "values");

    for (DType acc_dtype : {dtype_, DType::kFloat32}) {
      const Bytes before = AsDType(acc_dtype, CaseValues(2, count));
      Floats added(static_cast<size_t>(count));
      for (int64_t i = 0; i < count; ++i) {
        added[i] = __builtin_bit_cast(float, FloatBits(dtype_, decoded.data(), i));
      }
      Bytes sums = before;
      CHECK_OK(codec.DecodeMerge(dtype_, code, ReduceOp::kSum, acc_dtype, sums.data(), count,
                                 context));
      const DeviceBytes acc(before, 0);
      CHECK_OK(cuda::DecodeSum(case_.codec, dtype_, encoded.data(), acc_dtype, acc.data(), count,
                               stream_));
      Note(FirstOtherSum(acc_dtype, before, AsDType(acc_dtype, added), sums, acc.Take(), count) < 0,
           "sums");
    }
  }

  bool Report() const {
    std::printf("{\"codec\": \"%s\", \"dtype\": \"%s\", \"compared\": %d, \"differ\": \"%s\"}\n",
                case_.spec.c_str(), std::string(Name(dtype_)).c_str(), compared_, differ_.c_str());
    return differ_.empty();
  }

 private:
  void Note(bool equal, const char* what) {
    ++compared_;
    if (!equal && differ_.find(what) == std::string::npos) {
      differ_ += (differ_.empty() ? "" : ", ") + std::string(what);
    }
  }

  const FixedRateCase& case_;
  const DType dtype_;
  const cudaStream_t stream_;
  const DeviceBytes step_;
  int compared_ = 0;
  std::string differ_;
};

bool Compare(const FixedRateCase& c, DType dtype, cudaStream_t stream) {
  Comparison comparison(c, dtype, stream);
  for (int kind = 0; kind < kValueKinds; ++kind) {
    for (int64_t count : {1, 255, 4096, 100003, 1 << 20}) {
      const Bytes values = AsDType(dtype, CaseValues(kind, count));
      for (size_t offset : {0, 1, 2, 4}) comparison.Values(values, count, offset);
    }
  }
  if (cuda::RowOf(c.codec.format).code_bits == 16) {
    comparison.DecodeAndSum(AllHalves(), 1 << 16, 0);
  } else if (dtype != DType::kFloat32) {
    comparison.Values(AllHalves(), 1 << 16, 0);
  }
  return comparison.Report();
}

// Whether encoding can be captured in a CUDA graph.
bool CompareCaptured(cudaStream_t stream) {
  constexpr int64_t kCount = 100003;
  const FixedRateCase c = {"int8", {cuda::Format::kInt8, 32}};
  const Bytes values = AsDType(DType::kFloat32, Gaussian(kCount));
  const Bytes code = EncodeValues(c.spec, DType::kFloat32, values.data(), kCount, {}, 0);
  const DeviceBytes from(values, 0), to(code.size());
  cudaGraph_t graph;
  cudaGraphExec_t made;
  Cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
  CHECK_OK(cuda::Encode(c.codec, DType::kFloat32, from.data(), kCount, to.data(), nullptr, stream));
  Cuda(cudaStreamEndCapture(stream, &graph), "capture");
  Cuda(cudaGraphInstantiate(&made, graph, 0), "cudaGraphInstantiate");
  Cuda(cudaGraphLaunch(made, stream), "cudaGraphLaunch");
  const bool equal = to.Take() == code;
  Cuda(cudaGraphExecDestroy(made), "cudaGraphExecDestroy");
  Cuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
  std::printf("{\"captured\": \"%s\", \"equal\": %s}\n", c.spec.c_str(), equal ? "true" : "false");
  return equal;
}

class Measurement {
 public:
  explicit Measurement(cudaStream_t stream)
      : stream_(stream), values_(kBytes), code_(kBytes), acc_(kBytes), step_(StepBytes(), 0) {
    const Bytes some = AsDType(DType::kFloat32, Gaussian(1 << 20));
    for (size_t at = 0; at < kBytes; at += some.size()) {
      Cuda(cudaMemcpy(values_.data() + at, some.data(), some.size(), cudaMemcpyHostToDevice),
           "copy to the device");
    }
    const double seconds = MedianSeconds(stream_, [&] {
      Cuda(cudaMemcpyAsync(acc_.data(), values_.data(), kBytes, cudaMemcpyDeviceToDevice, stream_),
           "copy on the device");
    });
    copy_rate_ = 2 * kBytes / seconds;
    std::printf("{\"copy_gbps\": %.1f, \"bytes\": %zu}\n", copy_rate_ * 1e-9, kBytes);
  }

  void Run(const FixedRateCase& c, DType dtype) {
    const int64_t count = static_cast<int64_t>(kBytes) / SizeBytes(dtype);
    const int64_t code_bytes = cuda::HeaderBytes(c.codec, count) + cuda::CodeBytes(c.codec, count);
    const auto value_bytes = static_cast<int64_t>(kBytes);
    const auto time = [&](const char* operation, int64_t bytes, auto&& start) {
      const double rate =
          static_cast<double>(bytes) / MedianSeconds(stream_, [&] { CHECK_OK(start()); });
      std::printf("{\"codec\": \"%s\", \"dtype\": \"%s\", \"operation\": \"%s\", \"gbps\": %.1f, "
                  "\"of_copy\": %.3f}\n",
                  c.spec.c_str(), std::string(Name(dtype)).c_str(), operation, rate * 1e-9,
                  rate / copy_rate_);
    };
    time("encode", value_bytes + code_bytes, [&] {
      return cuda::Encode(c.codec, dtype, values_.data(), count, code_.data(), WordsOf(step_), stream_);
    });
    time("decode", value_bytes + code_bytes, [&] {
      return cuda::DecodeInto(c.codec, dtype, code_.data(), dtype, acc_.data(), count, stream_);
    });
    time("decode_sum", 2 * value_bytes + code_bytes, [&] {
      return cuda::DecodeSum(c.codec, dtype, code_.data(), dtype, acc_.data(), count, stream_);
    });
  }

 private:
  static constexpr size_t kBytes = size_t{256} << 20;   // of values: much larger than the caches
  const cudaStream_t stream_;
  const DeviceBytes values_, code_, acc_, step_;
  double copy_rate_ = 0;
};

// Calls f for each codec that matches the filter, and each dtype that it supports.
template <typename F>
void ForEachCase(std::string_view filter, F&& f) {
  for (const FixedRateCase& c : FixedRateCases()) {
    if (filter != kFixedRate && c.spec.find(filter) == std::string::npos) continue;
    for (DType dtype : kDTypes) {
      if (FindCodec(c.spec).Supports(dtype)) f(c, dtype);
    }
  }
}

}  // namespace

bool HasFixedRate(std::string_view filter) {
  bool any = false;
  ForEachCase(filter, [&](const FixedRateCase&, DType) { any = true; });
  return any;
}

bool CompareFixedRate(std::string_view filter, cudaStream_t stream) {
  bool equal = true, captures = false;
  ForEachCase(filter, [&](const FixedRateCase& c, DType dtype) {
    equal &= Compare(c, dtype, stream);
    captures |= c.codec.format == cuda::Format::kInt8;
  });
  if (captures) equal &= CompareCaptured(stream);
  return equal;
}

void MeasureFixedRate(std::string_view filter, cudaStream_t stream) {
  Measurement measurement(stream);
  ForEachCase(filter, [&](const FixedRateCase& c, DType dtype) { measurement.Run(c, dtype); });
}

}  // namespace jaxccomp
