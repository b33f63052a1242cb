// What collectives compute on the GPU beside coding: the same bits as the functions of the same names
// for the processor (reduce/reduce.h, codec/merge.h, reduce/residual.h, common/crc32c.h,
// codec/difference.h). Where an element-wise sum meets two NaNs, which of them it makes may differ.
//
// As in fixed_rate.h each function starts kernels on a stream of the current device and returns;
// nothing is allocated, copied or waited for. Pointers are to memory that the device reaches, values
// aligned to their size; 16 bytes make accesses the widest ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/dtype.h"
#include "common/host_device.h"
#include "common/status.h"
#include "device/device.h"
#include "reduce/reduce.h"

struct CUstream_st;

namespace jaxccomp::cuda {

// dst[i] = sources[0][i] op sources[1][i] op ... in that order, divided by `divisor`; half types are
// rounded once. Any number of sources; each is dst or does not overlap it. One kernel takes
// MaxReduceSources: where there are more, `accumulator` has room for `count` floats of half types,
// and for `count` values of others if dst is one of those that come later; else null.
JAXCCOMP_CUDA_EXPORT int MaxReduceSources();
JAXCCOMP_CUDA_EXPORT Status Reduce(DType dtype, ReduceOp op, void* dst,
                                   std::span<const void* const> sources, int64_t count,
                                   int64_t divisor, float* accumulator, CUstream_st* stream);

// acc[i] = acc[i] op values[i]; acc_dtype is dtype, or kFloat32 where dtype is a half type.
JAXCCOMP_CUDA_EXPORT Status MergeValues(DType dtype, const void* values, ReduceOp op,
                                        DType acc_dtype, void* acc, int64_t count,
                                        CUstream_st* stream);

// dst[i] = values[i] / divisor, rounded to a half type. `dst` does not overlap `values`.
JAXCCOMP_CUDA_EXPORT Status RoundToHalf(DType dtype, const float* values, int64_t divisor, void* dst,
                                        int64_t count, CUstream_st* stream);

// dst[i] = before[i] + (values[i] - decoded[i]) * times; without `before` (null), 0.
JAXCCOMP_CUDA_EXPORT Status AddResidual(DType dtype, void* dst, const void* before, const void* values,
                                    const void* decoded, int64_t count, int64_t times,
                                    CUstream_st* stream);

// codec/difference.h: values XOR ref when `exact`, else values - ref; and back.
JAXCCOMP_CUDA_EXPORT Status Subtract(DType dtype, bool exact, const void* values, const void* ref,
                                     void* difference, int64_t count, CUstream_st* stream);
JAXCCOMP_CUDA_EXPORT Status Add(DType dtype, bool exact, const void* difference, const void* ref,
                                void* values, int64_t count, CUstream_st* stream);

// Writes `element`, of 1, 2, 4, 8 or 16 bytes, `count` times.
JAXCCOMP_CUDA_EXPORT Status Fill(const Device::FillRun& run, CUstream_st* stream);

// Copies many runs with few kernels; any alignment. Runs do not overlap. Pays where they are small.
JAXCCOMP_CUDA_EXPORT Status CopyRuns(std::span<const Device::CopyRun> runs, CUstream_st* stream);

// Stores the CRC-32C of `bytes` bytes at `checksum` (four bytes, any memory that the device
// reaches). `workspace` has ChecksumWorkspaceBytes(bytes).
JAXCCOMP_CUDA_EXPORT int64_t ChecksumWorkspaceBytes(int64_t bytes);
JAXCCOMP_CUDA_EXPORT Status Checksum(const void* data, int64_t bytes, uint32_t* checksum,
                                     void* workspace, CUstream_st* stream);

}  // namespace jaxccomp::cuda
