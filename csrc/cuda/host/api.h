// The CUDA functions that CudaGpu calls: the runtime of one GPU, and the kernels. Tests replace them, to run CudaGpu
// without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "cuda/kernels/lossless/lossless.h"
#include "cuda/kernels/nvcomp/nvcomp.h"

struct CUevent_st;   // cudaEvent_t is CUevent_st*
struct CUstream_st;

namespace jaxccomp::cuda {

// Functions return a cudaError_t.
class CudaApi {
 public:
  static constexpr int kSuccess = 0;

  virtual ~CudaApi() = default;
  virtual std::string Describe(int error) const = 0;

  // Makes this GPU the calling thread's current device until End, which restores the one before.
  virtual int Begin() = 0;
  virtual void End() = 0;

  // GPU memory, allocated and freed in the stream's order.
  virtual int Allocate(std::byte** memory, int64_t bytes, CUstream_st* stream) = 0;
  virtual int Free(std::byte* memory, CUstream_st* stream) = 0;
  virtual int FreeBytes(int64_t* free_bytes, int64_t* all_bytes) = 0;
  // Pinned host memory, at the same address for host and GPU. FreePinned may wait for all work of the GPU.
  virtual int AllocatePinned(std::byte** memory, int64_t bytes) = 0;
  virtual int FreePinned(std::byte* memory) = 0;

  virtual int MakeEvent(CUevent_st** event) = 0;
  virtual int FreeEvent(CUevent_st* event) = 0;
  virtual int Record(CUevent_st* event, CUstream_st* stream) = 0;
  virtual int Wait(CUevent_st* event) = 0;

  virtual int Copy(void* to, const void* from, int64_t bytes, CUstream_st* stream) = 0;
  virtual int SetZero(void* to, int64_t bytes, CUstream_st* stream) = 0;
};

// The kernels of codecs of variable size (lossless.h, nvcomp.h).
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
