// Checks and measures the CUDA kernels, and the stage around them, on a GPU: bytes are compared with
// those of the CPU's functions, rates with that of a copy from device to device in the same run.
// Prints a line of JSON for the device, one for each codec and dtype that was compared, and one for
// each measurement.
//
//   jaxccomp_gpu_tests [compare | measure | all] [part of a spec, or of "stage"]
//
// Those of nvCOMP only when the part is "nvcomp", and beside "lossless".
// Exits with 0 when all is equal, 1 when not, and 77 where there is no device.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "check.h"
#include "cuda/kernels/fixed_rate/fixed_rate.h"
#include "device.h"
#include "fixed_rate_cases.h"
#include "lossless.h"
#include "nvcomp.h"
#include "stage.h"

namespace jaxccomp {
namespace {

using namespace testing;

constexpr RandomKey kKey = {0x123456789abcdef, 77, 3};
constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

// All that 16 bits can hold, as what a cast has encoded; conversions that the GPU has instructions
// for are compared on every half there is.
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
      : case_(c), dtype_(dtype), stream_(stream) {}

  // `offset` is how far what is encoded lies from an aligned address.
  void Chunk(const Bytes& values, int64_t count, size_t offset, int64_t first) {
    const Bytes code = EncodeValues(case_.spec, dtype_, values.data(), count, kKey, first);
    const DeviceBytes from(values, 0), to(code.size(), offset);
    CHECK_OK(cuda::Encode(case_.codec, dtype_, from.data(), count, to.data(), kKey, first,
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
  int compared_ = 0;
  std::string differ_;
};

bool Compare(const FixedRateCase& c, DType dtype, cudaStream_t stream) {
  Comparison comparison(c, dtype, stream);
  for (int kind = 0; kind < kValueKinds; ++kind) {
    for (int64_t count : {1, 255, 4096, 100003, 1 << 20}) {
      const Bytes values = AsDType(dtype, CaseValues(kind, count));
      for (size_t offset : {0, 1, 2, 4}) {
        comparison.Chunk(values, count, offset, static_cast<int64_t>(offset) * 1001);
      }
    }
  }
  if (cuda::RowOf(c.codec.format).code_bits == 16) {
    comparison.DecodeAndSum(AllHalves(), 1 << 16, 0);
  } else if (dtype != DType::kFloat32) {
    comparison.Chunk(AllHalves(), 1 << 16, 0, 0);
  }
  return comparison.Report();
}

// A stream that is being captured takes what is started, and the graph does it.
bool CompareCaptured(cudaStream_t stream) {
  constexpr int64_t kCount = 100003;
  const FixedRateCase c = {"int8", {cuda::Format::kInt8, 32}};
  const Bytes values = AsDType(DType::kFloat32, Gaussian(kCount));
  const Bytes code = EncodeValues(c.spec, DType::kFloat32, values.data(), kCount, {}, 0);
  const DeviceBytes from(values, 0), to(code.size());
  cudaGraph_t graph;
  cudaGraphExec_t made;
  Cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
  CHECK_OK(cuda::Encode(c.codec, DType::kFloat32, from.data(), kCount, to.data(), {}, 0, stream));
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
      : stream_(stream), values_(kBytes), code_(kBytes), acc_(kBytes) {
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
    const int64_t code_bytes = *cuda::EncodedBytes(c.codec, count);
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
      return cuda::Encode(c.codec, dtype, values_.data(), count, code_.data(), kKey, 0, stream_);
    });
    time("decode", value_bytes + code_bytes, [&] {
      return cuda::DecodeInto(c.codec, dtype, code_.data(), dtype, acc_.data(), count, stream_);
    });
    time("decode_sum", 2 * value_bytes + code_bytes, [&] {
      return cuda::DecodeSum(c.codec, dtype, code_.data(), dtype, acc_.data(), count, stream_);
    });
  }

 private:
  static constexpr size_t kBytes = size_t{256} << 20;   // of values: far more than caches hold
  const cudaStream_t stream_;
  const DeviceBytes values_, code_, acc_;
  double copy_rate_ = 0;
};

int Main(std::string_view what, std::string_view filter) {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || devices == 0) {
    std::fprintf(stderr,
                 "jaxccomp_gpu_tests: there is no CUDA device to test on (%s); run it on a machine "
                 "that nvidia-smi shows a GPU on\n",
                 error != cudaSuccess ? cudaGetErrorString(error) : "0 devices");
    return 77;
  }
  cudaDeviceProp device;
  Cuda(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  std::printf("{\"device\": \"%s\", \"sms\": %d, \"l2_bytes\": %d}\n", device.name,
              device.multiProcessorCount, device.l2CacheSize);
  cudaStream_t stream;
  Cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  const auto each = [&](auto&& f) {
    for (const FixedRateCase& c : FixedRateCases()) {
      if (c.spec.find(filter) == std::string::npos) continue;
      for (DType dtype : kDTypes) {
        if (FindCodec(c.spec).Supports(dtype)) f(c, dtype);
      }
    }
  };
  const bool shows_lossless = std::string_view("lossless").find(filter) != std::string_view::npos;
  const bool shows_stage = std::string_view("stage").find(filter) != std::string_view::npos;
  const bool shows_nvcomp = filter == "nvcomp" && FindNvcomp();
  bool equal = true;
  if (what != "measure") {
    each([&](const FixedRateCase& c, DType dtype) { equal &= Compare(c, dtype, stream); });
    if (filter != "nvcomp") equal &= CompareCaptured(stream);
    if (shows_lossless) equal &= CompareLossless(stream);
    if (shows_stage) equal &= CompareStage();
    if (shows_nvcomp) equal &= CompareNvcomp(stream);
  }
  if (what != "compare") {
    Measurement measurement(stream);
    each([&](const FixedRateCase& c, DType dtype) { measurement.Run(c, dtype); });
    if (shows_lossless) MeasureLossless(stream);
    if (shows_stage) MeasureStage();
    if (shows_nvcomp) MeasureNvcomp(stream, MeasureLossless(stream));
  }
  return equal && FailedChecks() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace jaxccomp

int main(int argc, char** argv) {
  // A line is out when it is printed, whatever ends the program then.
  std::setvbuf(stdout, nullptr, _IOLBF, 1 << 12);
  const std::string_view what = argc > 1 ? argv[1] : "";
  return jaxccomp::Main(what, argc > 2 ? argv[2] : "");
}
