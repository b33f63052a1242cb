// The formats of sparse.h: which calls they take, and how long what they encode is.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "codec/sparse/layout.h"
#include "common/dtype.h"
#include "cuda/kernels/sparse/sparse.h"

namespace jaxccomp::cuda {

// By SparseFormat.
inline constexpr std::string_view kSparseNames[] = {"topk", "dgc", "randomk"};

inline std::string_view NameOf(const Sparse& codec) {
  return kSparseNames[static_cast<int>(codec.format)];
}

inline Status WrongSparseCall(const Sparse& codec, Code code, const std::string& what) {
  return {code, "codec '" + std::string(NameOf(codec)) + "' on the GPU: " + what};
}

inline Status CheckSparseDType(const Sparse& codec, DType dtype) {
  if (dtype == DType::kFloat32 || IsHalf(dtype)) return Status::Ok();
  return WrongSparseCall(codec, Code::kUnimplemented,
                         "values of " + std::string(Name(dtype)) +
                             " are not coded, those of float32, float16 and bfloat16 are");
}

inline Status CheckSparseCount(const Sparse& codec, int64_t count) {
  if (count >= 0 && count <= std::numeric_limits<int32_t>::max()) return Status::Ok();
  return WrongSparseCall(codec, Code::kInvalidArgument,
                         std::to_string(count) +
                             " values are not from 0 to 2147483647; code smaller chunks");
}

// In front of a table.
inline int64_t SparseNumberBytes(const Sparse& codec) {
  return codec.format == SparseFormat::kDgc ? sparse::kNumberBytes : 0;
}

// As the codec's MinEncodedBytes and MaxEncodedBytes.
inline int64_t SparseBytes(const Sparse& codec, DType dtype, int64_t count, int64_t kept) {
  if (count == 0) return 0;
  if (codec.format == SparseFormat::kRandomK) {
    return sparse::kFlagBytes + sparse::kKeyBytes + kept * SizeBytes(dtype);
  }
  return sparse::TableBytes(sparse::kFlagBytes + SparseNumberBytes(codec), count, kept,
                            SizeBytes(dtype));
}
inline int64_t SparseLeastBytes(const Sparse& codec, DType dtype, int64_t count) {
  const bool varies = codec.format == SparseFormat::kDgc;
  return SparseBytes(codec, dtype, count, varies ? 0 : sparse::KeptValues(codec.density, count));
}
inline int64_t SparseMostBytes(const Sparse& codec, DType dtype, int64_t count) {
  const bool varies = codec.format == SparseFormat::kDgc;
  return SparseBytes(codec, dtype, count,
                     varies ? sparse::MostValues(codec.density, count)
                            : sparse::KeptValues(codec.density, count));
}

}  // namespace jaxccomp::cuda
