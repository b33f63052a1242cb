#include "cuda/kernels/sparse/sparse.h"

#include "cuda/kernels/common/launch.cuh"
#include "cuda/kernels/sparse/sparse_plan.cuh"

namespace jaxccomp::cuda {

int64_t SparseEncodeWorkspaceBytes(const Sparse& codec, DType dtype, int64_t count) {
  return SparseEncodeMemory(nullptr, codec, dtype, count).pieces.bytes();
}

int64_t SparseDecodeWorkspaceBytes(const Sparse&, int64_t count) {
  return SparseDecodeMemory(nullptr, count).pieces.bytes();
}

Status SparseEncode(const SparseEncodeCall& call, CUstream_st* stream) {
  return DispatchSparseEncode(call, LaunchOn{stream});
}

Status SparseDecode(const SparseDecodeCall& call, CUstream_st* stream) {
  return DispatchSparseDecode<false>(call, LaunchOn{stream});
}

Status SparseDecodeSum(const SparseDecodeCall& call, CUstream_st* stream) {
  return DispatchSparseDecode<true>(call, LaunchOn{stream});
}

}  // namespace jaxccomp::cuda
