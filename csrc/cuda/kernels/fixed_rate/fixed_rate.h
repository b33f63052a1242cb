// Codecs of a fixed rate on the GPU: the same bytes and values as those of the codecs of the same
// name (codec/cast, quantize, sign). Sums differ from theirs at most in which NaN two NaNs make.
//
// Each function starts one kernel on a stream of the current device and returns. Nothing is
// allocated, copied or waited for, so that a stream that is being captured takes it as well. Values
// of float16, bfloat16 and float32 are coded; "bf16" and "fp16" code float32 only.
//
// Pointers are to device memory: values are aligned to their size, codes need no alignment. Where
// values are aligned to 16 bytes, and what is encoded to its words, accesses are the widest ones.
#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "common/host_device.h"
#include "common/status.h"

struct CUstream_st;   // what cudaStream_t points to

namespace jaxccomp::cuda {

enum class Format : uint8_t {
  kBf16, kFp16, kE4m3, kE5m2, kInt8, kInt4, kInt2, kOneBit, kTernary, kTbq
};

// What a codec's spec comes to. Options that the format does not have are not looked at.
struct FixedRate {
  Format format = Format::kBf16;
  int64_t block = 0;         // 32 to 256 of fp8 and integers; 256, 1024 or 4096 of onebit and ternary
  bool stochastic = false;   // of bf16, integers and ternary
  float threshold = 0;       // of tbq
};

// Encodes `count` values, a whole tensor. Stochastic rounding draws the random numbers of the key
// {step, 0, 0}: `step_dev` is device memory with the step, two words, the lower first, which an earlier
// kernel of the stream may write. Other codecs do not read it, and it may be null.
JAXCCOMP_CUDA_EXPORT Status Encode(const FixedRate& codec, DType dtype, const void* values,
                                   int64_t count, void* code, const uint32_t* step_dev,
                                   CUstream_st* stream);

// Decodes exactly `count` values, as values of `into`: `dtype`, or float32 for half types, which are then
// not rounded. Every code of the right size decodes to something.
JAXCCOMP_CUDA_EXPORT Status DecodeInto(const FixedRate& codec, DType dtype, const void* code,
                                       DType into, void* values, int64_t count,
                                       CUstream_st* stream);

// acc[i] = acc[i] + decoded[i]. `acc_dtype` is `dtype`, or float32 for half types, which are then not
// rounded on the way.
JAXCCOMP_CUDA_EXPORT Status DecodeSum(const FixedRate& codec, DType dtype, const void* code,
                                      DType acc_dtype, void* acc, int64_t count,
                                      CUstream_st* stream);

}  // namespace jaxccomp::cuda
