// The codec "lossless" on the GPU: kernels that write and read the format of codec/lossless. Calls only enqueue work
// on a stream: they allocate nothing and do not block. docs/cuda_lossless.md describes the kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/lossless/layout.h"
#include "common/host_device.h"

struct CUstream_st;

namespace jaxccomp::cuda {

// The maximum size of an encoding of `words` words; kernels never write beyond it.
JAXCCOMP_CUDA_EXPORT int64_t LosslessBoundBytes(lossless::Layout layout, int64_t words);

// Bytes of workspace, aligned to 16, for encoding and for decoding.
JAXCCOMP_CUDA_EXPORT int64_t LosslessEncodeWorkspaceBytes(lossless::Layout layout, int64_t words);
JAXCCOMP_CUDA_EXPORT int64_t LosslessDecodeWorkspaceBytes(lossless::Layout layout, int64_t words);

// All pointers are to memory that the device can access: its own, or pinned host memory. Values are aligned to words
// (alignment to 16 bytes is faster), the others as their types require.
struct LosslessEncodeCall {
  lossless::Layout layout;
  int64_t words;
  const void* src;
  std::byte* dst;            // LosslessBoundBytes
  int64_t* size;             // the bytes written
  void* workspace;
  int64_t max_blocks = 0;   // max thread blocks that write to dst; 0: as many as are resident at a time
};

struct LosslessDecodeCall {
  lossless::Layout layout;
  int64_t words;
  const std::byte* payload;
  int64_t payload_bytes;
  void* dst;
  int32_t* status;   // 0: decoded; 1: not a valid encoding, and dst is undefined
  void* workspace;
};

// Return a cudaError_t.
JAXCCOMP_CUDA_EXPORT int LosslessEncode(const LosslessEncodeCall& call, CUstream_st* stream);
JAXCCOMP_CUDA_EXPORT int LosslessDecode(const LosslessDecodeCall& call, CUstream_st* stream);

}  // namespace jaxccomp::cuda
