// The codecs "nvcomp.*" on the GPU. nvCOMP encodes the chunks of a part in one batch; our kernels pack them into one
// code, and check a received code (docs/wire_format_nvcomp.md). nvCOMP is an optional library, opened at run time.
//
// Encoding and decoding enqueue work on a stream of the current device; they allocate nothing and do not block. Their
// only state between calls comes from NvcompPrepare.
//
// The maximum size of a code, which all ranks must know, is nvcomp::MaxEncodedBytes (codec/nvcomp/formats.h): it needs
// neither the library nor a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "codec/nvcomp/formats.h"
#include "common/dtype.h"
#include "common/host_device.h"
#include "common/status.h"

struct CUstream_st;

namespace jaxccomp::cuda {

// The codec of a canonical spec, if it is one of these codecs and the library is found: on the loader's path, or
// already in the process, opened by LookupCodec.
JAXCCOMP_CUDA_EXPORT std::optional<nvcomp::Spec> NvcompRuns(std::string_view spec);

// Prepares decoding on the current device: makes a seed, loads nvCOMP's kernels, and checks a round trip. Allocates
// memory and waits for the device. Later calls with the same spec and dtype return at once.
JAXCCOMP_CUDA_EXPORT Status NvcompPrepare(const nvcomp::Spec& spec, DType dtype);

// Bytes of workspace, aligned to 256. If `values` is not aligned to 16, values are copied through the workspace.
JAXCCOMP_CUDA_EXPORT Result<int64_t> NvcompEncodeWorkspaceBytes(const nvcomp::Spec& spec, DType dtype,
                                                                const void* values, int64_t count);
JAXCCOMP_CUDA_EXPORT Result<int64_t> NvcompDecodeWorkspaceBytes(const nvcomp::Spec& spec, DType dtype,
                                                                const void* values, int64_t count);

// All pointers are to memory that the device can access. Values are aligned to their size; codes may be unaligned, and
// in mapped host memory.
struct NvcompEncodeCall {
  nvcomp::Spec spec;
  DType dtype;
  const void* values;
  int64_t count;
  std::byte* code;   // nvcomp::MaxEncodedBytes
  int64_t* size;     // the bytes written
  void* workspace;
  int64_t max_blocks = 0;   // max thread blocks that write to `code`; 0: one per piece
};

struct NvcompDecodeCall {
  nvcomp::Spec spec;
  DType dtype;
  const std::byte* code;   // from the wire, untrusted
  int64_t code_bytes;
  void* values;
  int64_t count;
  int32_t* status;         // 0: decoded; 1: not a valid code, and `values` is undefined
  void* workspace;
};

JAXCCOMP_CUDA_EXPORT Status NvcompEncode(const NvcompEncodeCall& call, CUstream_st* stream);
// kFailedPrecondition unless NvcompPrepare has been called with the spec and the dtype.
JAXCCOMP_CUDA_EXPORT Status NvcompDecode(const NvcompDecodeCall& call, CUstream_st* stream);

}  // namespace jaxccomp::cuda
