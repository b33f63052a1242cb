#include "cuda/host/cuda_gpu.h"

#include <algorithm>
#include <vector>

#include "codec/lossless/layout.h"

namespace jaxccomp::cuda {
namespace {

// A few thread blocks produce codes as fast as PCIe carries them. More would wait for PCIe, and take multiprocessors
// from the program.
constexpr int64_t kMaxBlocksToHost = 32;
constexpr int64_t kVerdictBytes = sizeof(int32_t);

CUstream_st* Own(void* stream) { return static_cast<CUstream_st*>(stream); }

}  // namespace

// Makes the GPU the calling thread's current device.
class CudaGpu::Current {
 public:
  explicit Current(CudaApi* api) : api_(*api), error_(api->Begin()) {}
  ~Current() {
    if (error_ == CudaApi::kSuccess) api_.End();
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  int error() const { return error_; }

 private:
  CudaApi& api_;
  const int error_;
};

// Temporary memory of one call, allocated and freed in the stream's order.
class CudaGpu::Scratch {
 public:
  Scratch(CudaGpu* gpu, void* stream) : gpu_(*gpu), stream_(Own(stream)) {}
  ~Scratch() {
    // A failure here is a GPU failure: the next call reports it.
    for (std::byte* memory : taken_) static_cast<void>(gpu_.api_.Free(memory, stream_));
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  CUstream_st* stream() const { return stream_; }
  Result<std::byte*> Take(int64_t bytes) {
    std::byte* memory = nullptr;
    const int error = gpu_.api_.Allocate(&memory, std::max<int64_t>(bytes, 1), stream_);
    if (error == CudaApi::kSuccess) {
      taken_.push_back(memory);
      return memory;
    }
    int64_t free_bytes = 0, all_bytes = 0;
    std::string there;
    if (gpu_.api_.FreeBytes(&free_bytes, &all_bytes) == CudaApi::kSuccess) {
      there = "; " + std::to_string(free_bytes) + " of the GPU's " + std::to_string(all_bytes) +
              " bytes are free";
    }
    return Status(Code::kUnavailable,
                  gpu_.name_ + ": no temporary memory of " + std::to_string(bytes) + " bytes (" +
                      gpu_.api_.Describe(error) + ")" + there +
                      ". XLA takes most of a GPU's memory when it starts: leave some with "
                      "XLA_PYTHON_CLIENT_MEM_FRACTION, or lower the device_part_bytes option");
  }

 private:
  CudaGpu& gpu_;
  CUstream_st* const stream_;
  std::vector<std::byte*> taken_;
};

class CudaGpu::CudaEvent final : public Gpu::Event {
 public:
  CudaEvent(CudaGpu* gpu, CUevent_st* event) : gpu_(*gpu), event_(event) {}
  ~CudaEvent() override {
    const Current current(&gpu_.api_);
    static_cast<void>(gpu_.api_.FreeEvent(event_));
  }
  Status Record(void* stream) override {
    const Current current(&gpu_.api_);
    return gpu_.Check(gpu_.api_.Record(event_, Own(stream)), "recording an event");
  }
  Status Wait() override {
    const Current current(&gpu_.api_);
    return gpu_.Check(gpu_.api_.Wait(event_), "the work before an event");
  }

 private:
  CudaGpu& gpu_;
  CUevent_st* const event_;
};

Status CudaGpu::Check(int error, const std::string& what) const {
  if (error == CudaApi::kSuccess) return Status::Ok();
  return {Code::kUnavailable, name_ + ": " + what + " failed: " + api_.Describe(error)};
}

bool CudaGpu::Runs(const Codec& codec, DType dtype) const {
  return codec.Supports(dtype) && packings_.Find(codec).has_value();
}

Status CudaGpu::Prepare(const Codec& codec, DType dtype) {
  const std::optional<Packing> packing = packings_.Find(codec);
  if (!packing || !packing->nvcomp) return Status::Ok();
  const Current current(&api_);
  if (Status status = Check(current.error(), "using it"); !status.ok()) return status;
  return kernels_.nvcomp_prepare(*packing->nvcomp, dtype);
}

std::byte* CudaGpu::AllocatePinned(int64_t bytes) {
  const Current current(&api_);
  std::byte* memory = nullptr;
  return api_.AllocatePinned(&memory, bytes) == CudaApi::kSuccess ? memory : nullptr;
}

void CudaGpu::FreePinned(std::byte* memory) {
  const Current current(&api_);
  static_cast<void>(api_.FreePinned(memory));
}

Status CudaGpu::Copy(std::span<const CopyRun> runs, void* stream) {
  const Current current(&api_);
  for (const CopyRun& run : runs) {
    if (run.bytes == 0) continue;
    Status status = Check(api_.Copy(run.to, run.from, run.bytes, Own(stream)),
                          "a copy of " + std::to_string(run.bytes) + " bytes");
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

Status CudaGpu::Zero(std::byte* memory, int64_t bytes, void* stream) {
  if (bytes == 0) return Status::Ok();
  const Current current(&api_);
  return Check(api_.SetZero(memory, bytes, Own(stream)), "clearing memory");
}

Status CudaGpu::Encode(std::span<const EncodeRun> runs, void* stream) {
  const Current current(&api_);
  Scratch scratch(this, stream);
  for (const EncodeRun& run : runs) {
    if (Status status = EncodeOne(run, &scratch); !status.ok()) return status;
  }
  return Status::Ok();
}

Status CudaGpu::EncodeOne(const EncodeRun& run, Scratch* scratch) {
  const std::optional<Packing> packing = packings_.Find(*run.codec);
  const int64_t maximum = run.codec->MaxEncodedBytes(run.dtype, run.count);
  if (!packing || std::ssize(run.code) < maximum) {
    return {Code::kInternal, name_ + ": codec '" + run.codec->traits().spec + "' with room for " +
                                 std::to_string(run.code.size()) + " bytes of " + std::to_string(maximum)};
  }
  if (packing->nvcomp) {
    const Result<int64_t> bytes =
        kernels_.nvcomp_encode_workspace_bytes(*packing->nvcomp, run.dtype, run.values, run.count);
    if (!bytes.ok()) return bytes.status();
    const Result<std::byte*> workspace = scratch->Take(*bytes);
    if (!workspace.ok()) return workspace.status();
    return kernels_.nvcomp_encode({.spec = *packing->nvcomp,
                                   .dtype = run.dtype,
                                   .values = run.values,
                                   .count = run.count,
                                   .code = run.code.data(),
                                   .size = run.code_bytes,
                                   .workspace = *workspace,
                                   .max_blocks = kMaxBlocksToHost},
                                  scratch->stream());
  }
  const auto [layout, words_each] = lossless::LayoutOf(run.dtype);
  const int64_t words = run.count * words_each;
  const Result<std::byte*> workspace =
      scratch->Take(kernels_.lossless_encode_workspace_bytes(layout, words));
  if (!workspace.ok()) return workspace.status();
  return Check(kernels_.lossless_encode({.layout = layout,
                                         .words = words,
                                         .src = run.values,
                                         .dst = run.code.data(),
                                         .size = run.code_bytes,
                                         .workspace = *workspace,
                                         .max_blocks = kMaxBlocksToHost},
                                        scratch->stream()),
               "encoding with 'lossless'");
}

Status CudaGpu::Decode(std::span<const DecodeRun> runs, void* stream) {
  const Current current(&api_);
  Scratch scratch(this, stream);
  const Result<std::byte*> verdicts = scratch.Take(std::ssize(runs) * kVerdictBytes);
  if (!verdicts.ok()) return verdicts.status();
  auto* verdict = reinterpret_cast<int32_t*>(*verdicts);
  for (const DecodeRun& run : runs) {
    const int64_t bytes = std::ssize(run.code);
    if (bytes < run.codec->MinEncodedBytes(run.dtype, run.count) ||
        bytes > run.codec->MaxEncodedBytes(run.dtype, run.count)) {
      *run.verdict = 1;
      continue;
    }
    const Result<std::byte*> code = scratch.Take(bytes);
    if (!code.ok()) return code.status();
    Status status = Check(api_.Copy(*code, run.code.data(), bytes, scratch.stream()), "a copy of a code");
    if (status.ok()) status = DecodeOne(run, *code, verdict, &scratch);
    if (status.ok()) {
      status = Check(api_.Copy(run.verdict, verdict, kVerdictBytes, scratch.stream()), "a copy of a verdict");
    }
    if (!status.ok()) return status;
    ++verdict;
  }
  return Status::Ok();
}

Status CudaGpu::DecodeOne(const DecodeRun& run, const std::byte* code, int32_t* verdict, Scratch* scratch) {
  const std::optional<Packing> packing = packings_.Find(*run.codec);
  if (!packing) return {Code::kInternal, name_ + " has no codec '" + run.codec->traits().spec + "'"};
  if (packing->nvcomp) {
    const Result<int64_t> bytes =
        kernels_.nvcomp_decode_workspace_bytes(*packing->nvcomp, run.dtype, run.values, run.count);
    if (!bytes.ok()) return bytes.status();
    const Result<std::byte*> workspace = scratch->Take(*bytes);
    if (!workspace.ok()) return workspace.status();
    return kernels_.nvcomp_decode({.spec = *packing->nvcomp,
                                   .dtype = run.dtype,
                                   .code = code,
                                   .code_bytes = std::ssize(run.code),
                                   .values = run.values,
                                   .count = run.count,
                                   .status = verdict,
                                   .workspace = *workspace},
                                  scratch->stream());
  }
  const auto [layout, words_each] = lossless::LayoutOf(run.dtype);
  const int64_t words = run.count * words_each;
  const Result<std::byte*> workspace =
      scratch->Take(kernels_.lossless_decode_workspace_bytes(layout, words));
  if (!workspace.ok()) return workspace.status();
  return Check(kernels_.lossless_decode({.layout = layout,
                                         .words = words,
                                         .payload = code,
                                         .payload_bytes = std::ssize(run.code),
                                         .dst = run.values,
                                         .status = verdict,
                                         .workspace = *workspace},
                                        scratch->stream()),
               "decoding with 'lossless'");
}

Result<std::unique_ptr<Gpu::Event>> CudaGpu::MakeEvent() {
  const Current current(&api_);
  CUevent_st* event = nullptr;
  const int error = api_.MakeEvent(&event);
  if (error != CudaApi::kSuccess) return Check(error, "making an event");
  return std::unique_ptr<Event>(std::make_unique<CudaEvent>(this, event));
}

}  // namespace jaxccomp::cuda
