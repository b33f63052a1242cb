// All that CudaGpu asks of CUDA: the runtime's functions, of one GPU, and the kernels. Tests give it others, so
// that its logic runs where there is no GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "cuda/kernels/lossless/lossless.h"
#include "cuda/kernels/nvcomp/nvcomp.h"

struct CUevent_st;   // what cudaEvent_t points to
struct CUstream_st;

namespace jaxccomp::cuda {

// Functions return a cudaError_t.
class CudaApi {
 public:
  static constexpr int kSuccess = 0;

  virtual ~CudaApi() = default;
  virtual std::string Describe(int error) const = 0;

  // The calling thread uses this GPU from Begin to End, and what it used before then.
  virtual int Begin() = 0;
  virtual void End() = 0;

  // Memory of the GPU, which is taken and given back in the stream's order.
  virtual int Allocate(std::byte** memory, int64_t bytes, CUstream_st* stream) = 0;
  virtual int Free(std::byte* memory, CUstream_st* stream) = 0;
  virtual int FreeBytes(int64_t* free_bytes, int64_t* all_bytes) = 0;
  // Pinned memory of the host, at the same address on both sides. To give it back may wait for all of the GPU.
  virtual int AllocatePinned(std::byte** memory, int64_t bytes) = 0;
  virtual int FreePinned(std::byte* memory) = 0;

  virtual int MakeEvent(CUevent_st** event) = 0;
  virtual int FreeEvent(CUevent_st* event) = 0;
  virtual int Record(CUevent_st* event, CUstream_st* stream) = 0;
  virtual int Wait(CUevent_st* event) = 0;

  virtual int Copy(void* to, const void* from, int64_t bytes, CUstream_st* stream) = 0;
  virtual int SetZero(void* to, int64_t bytes, CUstream_st* stream) = 0;
};

// The kernels of codecs whose size varies, as lossless.h and nvcomp.h describe them.
struct KernelTable {
  decltype(&LosslessEncodeWorkspaceBytes) lossless_encode_workspace_bytes;
  decltype(&LosslessDecodeWorkspaceBytes) lossless_decode_workspace_bytes;
  decltype(&LosslessEncode) lossless_encode;
  decltype(&LosslessDecode) lossless_decode;
  decltype(&NvcompPrepare) nvcomp_prepare;
  decltype(&NvcompEncodeWorkspaceBytes) nvcomp_encode_workspace_bytes;
  decltype(&NvcompDecodeWorkspaceBytes) nvcomp_decode_workspace_bytes;
  decltype(&NvcompEncode) nvcomp_encode;
  decltype(&NvcompDecode) nvcomp_decode;
};

}  // namespace jaxccomp::cuda
