// Implements Gpu with CUDA's runtime and our kernels.
//
// The kernels of "lossless" and nvCOMP write codes directly to pinned memory, since a code's length is only known
// when it is complete. Received codes are copied to the GPU and decoded there.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "cuda/gpu.h"
#include "cuda/host/api.h"
#include "cuda/host/codings.h"

namespace jaxccomp::cuda {

class CudaGpu final : public Gpu {
 public:
  // `api` and `kernels` outlive it.
  CudaGpu(CudaApi* api, const KernelTable* kernels, std::string name)
      : api_(*api), kernels_(*kernels), name_(std::move(name)) {}

  std::string_view name() const override { return name_; }
  bool Runs(const Codec& codec, DType dtype) const override;
  Status Prepare(const Codec& codec, DType dtype) override;
  std::byte* AllocatePinned(int64_t bytes) override;
  void FreePinned(std::byte* memory) override;
  Status Copy(std::span<const CopyRun> runs, void* stream) override;
  Status Zero(std::byte* memory, int64_t bytes, void* stream) override;
  Status Encode(std::span<const EncodeRun> runs, void* stream) override;
  Status Decode(std::span<const DecodeRun> runs, void* stream) override;
  Result<std::unique_ptr<Event>> MakeEvent() override;

 private:
  class CudaEvent;
  class Scratch;
  class Current;

  Status EncodeOne(const EncodeRun& run, Scratch* scratch);
  Status DecodeOne(const DecodeRun& run, const std::byte* code, int32_t* verdict, Scratch* scratch);
  // Converts a CUDA error to a status; `what` names the operation.
  Status Check(int error, const std::string& what) const;

  CudaApi& api_;
  const KernelTable& kernels_;
  const std::string name_;
  const CodecCache<Packing> packings_{FindPacking};
};

}  // namespace jaxccomp::cuda
