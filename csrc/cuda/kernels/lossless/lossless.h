// The codec "lossless" on the GPU: the bytes of codec/lossless, made and read by kernels. Calls
// only put work into a stream: they allocate nothing and wait for nothing. docs/cuda_lossless.md
// says how the kernels share the work.
#pragma once

#include <cstddef>
#include <cstdint>

#include "codec/lossless/layout.h"
#include "common/host_device.h"

struct CUstream_st;

namespace jaxccomp::cuda {

// What an encoding of `words` words takes at most: nothing beyond it is ever written.
JAXCCOMP_CUDA_EXPORT int64_t LosslessBoundBytes(lossless::Layout layout, int64_t words);

// Bytes of workspace, aligned to 16, for either direction.
JAXCCOMP_CUDA_EXPORT int64_t LosslessEncodeWorkspaceBytes(lossless::Layout layout, int64_t words);
JAXCCOMP_CUDA_EXPORT int64_t LosslessDecodeWorkspaceBytes(lossless::Layout layout, int64_t words);

// All pointers are to memory that the device can reach, of its own or pinned on the host. Values are
// aligned to words (16 bytes make it fast), the rest as its type says.
struct LosslessEncodeCall {
  lossless::Layout layout;
  int64_t words;
  const void* src;
  std::byte* dst;            // LosslessBoundBytes
  int64_t* size;             // the bytes written
  void* workspace;
  int64_t most_blocks = 0;   // of threads that write to dst; 0: as many as the device runs at a time
};

struct LosslessDecodeCall {
  lossless::Layout layout;
  int64_t words;
  const std::byte* payload;
  int64_t payload_bytes;
  void* dst;
  int32_t* status;   // 0: decoded; 1: not a valid encoding, and dst holds anything
  void* workspace;
};

// The outcome is a cudaError_t, 0 for success.
JAXCCOMP_CUDA_EXPORT int LosslessEncode(const LosslessEncodeCall& call, CUstream_st* stream);
JAXCCOMP_CUDA_EXPORT int LosslessDecode(const LosslessDecodeCall& call, CUstream_st* stream);

}  // namespace jaxccomp::cuda
