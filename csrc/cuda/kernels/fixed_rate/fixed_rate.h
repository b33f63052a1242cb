// Fixed-rate codecs on the GPU, with the same bytes and values as the CPU's codecs of the same name (codec/cast,
// quantize, sign). Only the bits of a NaN that is the sum of two NaNs may differ.
//
// Each function starts one kernel on a stream of the current device. It allocates nothing, copies nothing and does not
// block, so that it works on a stream that is being captured. Values are float16, bfloat16 or float32; "bf16" and
// "fp16" encode float32 only.
//
// Pointers are to device memory; values are aligned to their size, codes need no alignment. Accesses are widest if
// values are aligned to 16 bytes, and codes to their words.
#pragma once

#include <cstdint>

#include "common/dtype.h"
#include "common/host_device.h"
#include "common/status.h"

struct CUstream_st;   // cudaStream_t is CUstream_st*

namespace jaxccomp::cuda {

enum class Format : uint8_t {
  kBf16, kFp16, kE4m3, kE5m2, kInt8, kInt4, kInt2, kOneBit, kTernary, kTbq
};

// A parsed codec spec. Options that the format lacks are ignored.
struct FixedRate {
  Format format = Format::kBf16;
  int64_t block = 0;         // fp8 and integers: 32 to 256; onebit and ternary: 256, 1024 or 4096
  bool stochastic = false;   // bf16, integers and ternary
  float threshold = 0;       // tbq
};

// Encodes `count` values, a whole tensor. Stochastic rounding uses the random key {step, 0, 0}. `step_dev` is device
// memory with the step as two words, the lower first; an earlier kernel of the stream may write it. Other codecs do
// not read it, and it may be null.
JAXCCOMP_CUDA_EXPORT Status Encode(const FixedRate& codec, DType dtype, const void* values,
                                   int64_t count, void* code, const uint32_t* step_dev,
                                   CUstream_st* stream);

// Decodes exactly `count` values to dtype `into`: `dtype`, or float32 without rounding for half types. Every code of
// the right size is valid.
JAXCCOMP_CUDA_EXPORT Status DecodeInto(const FixedRate& codec, DType dtype, const void* code,
                                       DType into, void* values, int64_t count,
                                       CUstream_st* stream);

// acc[i] = acc[i] + decoded[i]. `acc_dtype` is `dtype`, or float32 for half types, whose values are then not rounded.
JAXCCOMP_CUDA_EXPORT Status DecodeSum(const FixedRate& codec, DType dtype, const void* code,
                                      DType acc_dtype, void* acc, int64_t count,
                                      CUstream_st* stream);

}  // namespace jaxccomp::cuda
