// The codecs "topk", "dgc" and "randomk" on the GPU: the bytes and values of codec/sparse, and sums
// that differ from theirs at most in which NaN two NaNs make.
//
// Calls put a few kernels on a stream of the current device and return: nothing is allocated, copied
// or waited for. Values are float32, float16 or bfloat16, fewer than 2^31 of them. Pointers are to
// memory that the device can reach: values are aligned to their size (16 bytes make it fast), codes
// need no alignment, workspaces are aligned to 16.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/codec.h"
#include "common/dtype.h"
#include "common/host_device.h"
#include "common/status.h"

struct CUstream_st;

namespace jaxccomp::cuda {

enum class SparseFormat : uint8_t { kTopK, kDgc, kRandomK };

// What a codec's spec comes to.
struct Sparse {
  SparseFormat format = SparseFormat::kTopK;
  double density = 0;
  bool unbiased = false;   // of randomk
};

JAXCCOMP_CUDA_EXPORT int64_t SparseEncodeWorkspaceBytes(const Sparse& codec, DType dtype,
                                                        int64_t count);
JAXCCOMP_CUDA_EXPORT int64_t SparseDecodeWorkspaceBytes(const Sparse& codec, int64_t count);

struct SparseEncodeCall {
  Sparse codec;
  DType dtype;
  const void* values;
  int64_t count;
  std::byte* code;   // room for the codec's MaxEncodedBytes
  int64_t* size;     // the bytes written; null: not asked for
  RandomKey key;     // of randomk, with the position in the tensor of the first value
  int64_t first;
  void* workspace;
};

struct SparseDecodeCall {
  Sparse codec;
  DType dtype;
  const std::byte* code;
  int64_t code_bytes;   // within the codec's limits; what is there is not trusted
  void* values;         // the decoded ones; or float32 sums that these are added to
  int64_t count;
  int32_t* status;      // made 1 when this is not a valid encoding, and `values` holds anything
  void* workspace;
};

JAXCCOMP_CUDA_EXPORT Status SparseEncode(const SparseEncodeCall& call, CUstream_st* stream);
JAXCCOMP_CUDA_EXPORT Status SparseDecode(const SparseDecodeCall& call, CUstream_st* stream);
JAXCCOMP_CUDA_EXPORT Status SparseDecodeSum(const SparseDecodeCall& call, CUstream_st* stream);

}  // namespace jaxccomp::cuda
