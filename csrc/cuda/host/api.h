// All that CudaDevice asks of CUDA: the runtime's functions, of one GPU, and the kernels. Tests give
// it others, so that its logic runs where there is no GPU.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "cuda/kernels/compute/compute.h"
#include "cuda/kernels/fixed_rate/fixed_rate.h"
#include "cuda/kernels/lossless/lossless.h"
#include "cuda/kernels/nvcomp/nvcomp.h"
#include "cuda/kernels/sparse/sparse.h"

struct CUevent_st;   // what cudaEvent_t points to
struct CUstream_st;

namespace jaxccomp::cuda {

// Functions return a cudaError_t. None of them waits for the device.
class CudaApi {
 public:
  static constexpr int kSuccess = 0;
  static constexpr int kOutOfMemory = 2;
  static constexpr int kNotReady = 600;

  virtual ~CudaApi() = default;
  virtual std::string Describe(int error) const = 0;

  // The calling thread uses this GPU from Begin to End, and what it used before then.
  virtual int Begin() = 0;
  virtual void End() = 0;

  // Memory of the device, which is taken and given back in the stream's order: nothing but the
  // stream's own work waits for it.
  virtual int Allocate(std::byte** memory, int64_t bytes, CUstream_st* stream) = 0;
  virtual int Free(std::byte* memory, CUstream_st* stream) = 0;
  virtual int FreeBytes(int64_t* free_bytes, int64_t* all_bytes) = 0;
  // Pinned memory of the host, at the same address on both sides. There is no way to give it back
  // that would not wait for all of the device.
  virtual int AllocatePinned(std::byte** memory, int64_t bytes) = 0;

  // Memory that other processes of the host can open. These may wait for all of the device. Nothing
  // of it is given back: others may read it still, and to free it would wait as well.
  using IpcKey = std::array<std::byte, 64>;
  using Uuid = std::array<std::byte, 16>;
  virtual int AllocateShared(std::byte** memory, int64_t bytes) = 0;
  virtual int Export(IpcKey* key, std::byte* memory) = 0;
  virtual int Import(std::byte** memory, int64_t* bytes, const IpcKey& key) = 0;
  // Of another GPU of this process: its memory is reached from now on.
  virtual int ReachPeer(const Uuid& gpu) = 0;
  virtual Uuid OwnUuid() const = 0;
  // This process's, among those of the host.
  virtual uint64_t ProcessNumber() const = 0;

  virtual int MakeStream(CUstream_st** stream) = 0;
  virtual int MakeEvent(CUevent_st** event) = 0;
  virtual int Record(CUevent_st* event, CUstream_st* stream) = 0;
  // kSuccess when the event is over, kNotReady when not.
  virtual int Query(CUevent_st* event) = 0;
  // The stream stops until the word is at least `value`, in the order of sequence numbers.
  virtual int WaitAtLeast(CUstream_st* stream, uint32_t* word, uint32_t value) = 0;
  // Waits for a stream that has nothing to do but take memory and give it back.
  virtual int Settle(CUstream_st* stream) = 0;

  virtual int Copy(void* to, const void* from, int64_t bytes, CUstream_st* stream) = 0;
  virtual int SetZero(void* to, int64_t bytes, CUstream_st* stream) = 0;
};

// The kernels, as fixed_rate.h, sparse.h, lossless.h, nvcomp.h and compute.h describe them.
struct KernelTable {
  decltype(&Encode) encode;
  decltype(&Decode) decode;
  decltype(&DecodeSum) decode_sum;
  decltype(&SparseEncodeWorkspaceBytes) sparse_encode_workspace_bytes;
  decltype(&SparseDecodeWorkspaceBytes) sparse_decode_workspace_bytes;
  decltype(&SparseEncode) sparse_encode;
  decltype(&SparseDecode) sparse_decode;
  decltype(&SparseDecodeSum) sparse_decode_sum;
  decltype(&LosslessEncodeWorkspaceBytes) lossless_encode_workspace_bytes;
  decltype(&LosslessDecodeWorkspaceBytes) lossless_decode_workspace_bytes;
  decltype(&LosslessEncode) lossless_encode;
  decltype(&LosslessDecode) lossless_decode;
  decltype(&NvcompPrepare) nvcomp_prepare;
  decltype(&NvcompEncodeWorkspaceBytes) nvcomp_encode_workspace_bytes;
  decltype(&NvcompDecodeWorkspaceBytes) nvcomp_decode_workspace_bytes;
  decltype(&NvcompEncode) nvcomp_encode;
  decltype(&NvcompDecode) nvcomp_decode;
  decltype(&MaxReduceSources) max_reduce_sources;
  decltype(&Reduce) reduce;
  decltype(&MergeValues) merge_values;
  decltype(&RoundToHalf) round_to_half;
  decltype(&AddResidual) add_lost;
  decltype(&Subtract) subtract;
  decltype(&Add) add;
  decltype(&Fill) fill;
  decltype(&CopyRuns) copy_runs;
  decltype(&ChecksumWorkspaceBytes) checksum_workspace_bytes;
  decltype(&Checksum) checksum;
};

}  // namespace jaxccomp::cuda
