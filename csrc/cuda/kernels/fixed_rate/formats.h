// The formats of fixed_rate.h: their options, and the sizes of headers and codes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "common/dtype.h"
#include "cuda/kernels/common/memory.cuh"
#include "cuda/kernels/fixed_rate/fixed_rate.h"

namespace jaxccomp::cuda {

struct FormatRow {
  std::string_view name;
  int code_bits;
  int header_bytes;     // of a block
  int64_t blocks[4];    // allowed values per block; all 0 for formats without blocks
};

inline constexpr FormatRow kFormats[] = {
    {"bf16", 16, 0, {}},
    {"fp16", 16, 0, {}},
    {"fp8_e4m3", 8, 1, {32, 64, 128, 256}},
    {"fp8_e5m2", 8, 1, {32, 64, 128, 256}},
    {"int8", 8, 2, {32, 64, 128, 256}},
    {"int4", 4, 2, {32, 64, 128, 256}},
    {"int2", 2, 2, {32, 64, 128, 256}},
    {"onebit", 1, 8, {256, 1024, 4096}},
    {"ternary", 2, 4, {256, 1024, 4096}},
    {"tbq", 2, 0, {1024}},
};

inline constexpr const FormatRow& RowOf(Format format) {
  return kFormats[static_cast<int>(format)];
}

// The block size of "tbq" is fixed, not an option.
inline int64_t BlockValues(const FixedRate& codec) {
  return codec.format == Format::kTbq ? RowOf(Format::kTbq).blocks[0] : codec.block;
}

inline Status WrongCall(const FixedRate& codec, Code code, const std::string& what) {
  return {code, "codec '" + std::string(RowOf(codec.format).name) + "' on the GPU: " + what};
}

inline Status CheckCall(const FixedRate& codec, int64_t count) {
  const FormatRow& row = RowOf(codec.format);
  // Keeps all sizes in bytes below 2^63.
  constexpr int64_t kMaxValues = std::numeric_limits<int64_t>::max() / 16;
  if (count < 0 || count > kMaxValues) {
    return WrongCall(codec, Code::kInvalidArgument,
                     std::to_string(count) + " is not a possible count of values");
  }
  const bool has_blocks = row.blocks[0] != 0;
  const auto* end = std::find(std::begin(row.blocks), std::end(row.blocks), 0);
  if (has_blocks && std::find(std::begin(row.blocks), end, BlockValues(codec)) == end) {
    std::string valid;
    for (const auto* block = std::begin(row.blocks); block != end; ++block) {
      valid += (valid.empty() ? "" : ", ") + std::to_string(*block);
    }
    return WrongCall(codec, Code::kInvalidArgument,
                     "block=" + std::to_string(codec.block) + " is not one of " + valid);
  }
  return Status::Ok();
}

inline Status CheckDType(const FixedRate& codec, DType dtype) {
  const bool cast = RowOf(codec.format).code_bits == 16;
  if (dtype == DType::kFloat32 || (IsHalf(dtype) && !cast)) return Status::Ok();
  return WrongCall(codec, Code::kUnimplemented,
                   "values of " + std::string(Name(dtype)) + " are not coded, those of float32" +
                       (cast ? " are" : ", float16 and bfloat16 are"));
}

// The size of all headers, which precede the codes.
inline int64_t HeaderBytes(const FixedRate& codec, int64_t count) {
  const FormatRow& row = RowOf(codec.format);
  return row.header_bytes == 0 ? 0 : CeilDiv(count, BlockValues(codec)) * row.header_bytes;
}

inline int64_t CodeBytes(const FixedRate& codec, int64_t count) {
  const int bits = RowOf(codec.format).code_bits;
  return bits >= 8 ? count * (bits / 8) : CeilDiv(count, 8 / bits);
}

}  // namespace jaxccomp::cuda
