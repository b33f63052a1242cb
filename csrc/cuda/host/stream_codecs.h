// Implements StreamCodecs with the kernels of fixed_rate.h: one launch per row.
#pragma once

#include "cuda/host/codings.h"
#include "cuda/kernels/fixed_rate/fixed_rate.h"
#include "cuda/stream_codecs.h"

namespace jaxccomp::cuda {

// The functions that launch kernels. Tests replace them, to run without a GPU.
struct StreamKernels {
  decltype(&Encode) encode;
  decltype(&DecodeInto) decode_into;
  decltype(&DecodeSum) decode_sum;
};

class CudaStreamCodecs final : public StreamCodecs {
 public:
  explicit CudaStreamCodecs(const StreamKernels* kernels) : kernels_(*kernels) {}

  bool Runs(const Codec& codec, DType dtype) const override;
  Status Encode(const CodedRows& rows, const std::byte* values, const uint32_t* keys,
                std::byte* codes, void* stream) const override;
  Status Decode(const CodedRows& rows, const std::byte* codes, DType to, std::byte* values,
                void* stream) const override;
  Status DecodeSum(const CodedRows& rows, const std::byte* codes, DType to, std::byte* sum,
                   void* stream) const override;

 private:
  Result<FixedRate> FindFor(const CodedRows& rows) const;

  const StreamKernels& kernels_;
  const CodecCache<FixedRate> formats_{FindFixedRate};
};

}  // namespace jaxccomp::cuda
