// The codecs "nvcomp.*" on the GPU: nvCOMP codes chunks of a part in one batch, and kernels of ours
// make one code of them and check one that has come (docs/wire_format_nvcomp.md). nvCOMP is opened at
// run time, and nothing here needs it to be there.
//
// Encode and decode put work into a stream of the current device, allocate nothing and wait for
// nothing. They hold nothing between calls but what NvcompPrepare has made.
//
// How large a code can be, which all ranks must know, is nvcomp::MaxEncodedBytes of
// codec/nvcomp/formats.h: it asks neither the library nor a GPU.
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

// The codec that a canonical spec names, where it is one of these and the library is found: on the
// loader's path, or in the process already, as LookupCodec has opened it.
JAXCCOMP_CUDA_EXPORT std::optional<nvcomp::Spec> NvcompRuns(std::string_view spec);

// Makes what decoding on the current device needs, loads nvCOMP's kernels, and codes some values to
// and fro. Allocates memory and waits for the device.
// Further calls with the same spec and dtype return at once.
JAXCCOMP_CUDA_EXPORT Status NvcompPrepare(const nvcomp::Spec& spec, DType dtype);

// Bytes of workspace, aligned to 256. `values` is where they lie: unless aligned to 16 they are
// copied into the workspace first, or out of it at the end.
JAXCCOMP_CUDA_EXPORT Result<int64_t> NvcompEncodeWorkspaceBytes(const nvcomp::Spec& spec, DType dtype,
                                                                const void* values, int64_t count);
JAXCCOMP_CUDA_EXPORT Result<int64_t> NvcompDecodeWorkspaceBytes(const nvcomp::Spec& spec, DType dtype,
                                                                const void* values, int64_t count);

// All pointers are to memory that the device reaches. Values are aligned to their size; codes may lie
// anywhere, also in mapped memory of the host.
struct NvcompEncodeCall {
  nvcomp::Spec spec;
  DType dtype;
  const void* values;
  int64_t count;
  std::byte* code;   // nvcomp::MaxEncodedBytes
  int64_t* size;     // the bytes written
  void* workspace;
  int64_t most_blocks = 0;   // of threads that write to `code`; 0: as many as there are pieces
};

struct NvcompDecodeCall {
  nvcomp::Spec spec;
  DType dtype;
  const std::byte* code;   // from the wire, not trusted
  int64_t code_bytes;
  void* values;
  int64_t count;
  int32_t* status;         // 0: decoded; 1: not a valid code, and `values` holds anything
  void* workspace;
};

JAXCCOMP_CUDA_EXPORT Status NvcompEncode(const NvcompEncodeCall& call, CUstream_st* stream);
// kFailedPrecondition unless NvcompPrepare has been called with the spec and the dtype.
JAXCCOMP_CUDA_EXPORT Status NvcompDecode(const NvcompDecodeCall& call, CUstream_st* stream);

}  // namespace jaxccomp::cuda
