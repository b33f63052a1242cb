// The kernels of compute.h but for checksums.
#include "cuda/kernels/common/launch.cuh"
#include "cuda/kernels/compute/compute_dispatch.cuh"

namespace jaxccomp::cuda {

int MaxReduceSources() { return kMaxReduceSources; }

Status Reduce(DType dtype, ReduceOp op, void* dst, std::span<const void* const> sources,
              int64_t count, int64_t divisor, float* accumulator, CUstream_st* stream) {
  return DispatchReduce(dtype, op, dst, sources, count, divisor, accumulator, LaunchOn{stream});
}

Status MergeValues(DType dtype, const void* values, ReduceOp op, DType acc_dtype, void* acc,
                   int64_t count, CUstream_st* stream) {
  return DispatchMerge(dtype, values, op, acc_dtype, acc, count, LaunchOn{stream});
}

Status RoundToHalf(DType dtype, const float* values, int64_t divisor, void* dst, int64_t count,
                   CUstream_st* stream) {
  return DispatchRound(dtype, values, divisor, dst, count, LaunchOn{stream});
}

Status AddResidual(DType dtype, void* dst, const void* before, const void* values, const void* decoded,
               int64_t count, int64_t times, CUstream_st* stream) {
  return DispatchAddLost(dtype, dst, before, values, decoded, count, times, LaunchOn{stream});
}

Status Subtract(DType dtype, bool exact, const void* values, const void* ref, void* difference,
                int64_t count, CUstream_st* stream) {
  return DispatchDifference<false>(dtype, exact, values, ref, difference, count, LaunchOn{stream});
}

Status Add(DType dtype, bool exact, const void* difference, const void* ref, void* values,
           int64_t count, CUstream_st* stream) {
  return DispatchDifference<true>(dtype, exact, difference, ref, values, count, LaunchOn{stream});
}

Status Fill(const Device::FillRun& run, CUstream_st* stream) {
  return DispatchFill(run, LaunchOn{stream});
}

Status CopyRuns(std::span<const Device::CopyRun> runs, CUstream_st* stream) {
  return DispatchCopy(runs, LaunchOn{stream});
}

}  // namespace jaxccomp::cuda
