// The kernels that make CRC-32C.
#include "cuda/kernels/common/checksum.cuh"
#include "cuda/kernels/common/launch.cuh"
#include "cuda/kernels/compute/compute.h"

namespace jaxccomp::cuda {

int64_t ChecksumWorkspaceBytes(int64_t bytes) {
  return std::max<int64_t>(1, ChecksumChunks(bytes)) * static_cast<int64_t>(sizeof(uint32_t));
}

Status Checksum(const void* data, int64_t bytes, uint32_t* checksum, void* workspace,
                CUstream_st* stream) {
  return DispatchChecksum(data, bytes, checksum, workspace, LaunchOn{stream});
}

}  // namespace jaxccomp::cuda
