// The length checks that every fixed-rate codec makes before it touches memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "common/dtype.h"
#include "common/status.h"

namespace jaxccomp {

// kInvalidArgument when `count` is negative, or so large that its values' bytes cannot be counted,
// or `dst` is smaller than `encoded_bytes`.
Status CheckEncode(std::string_view codec, DType dtype, int64_t count, int64_t encoded_bytes,
                   std::span<std::byte> dst);

// kDataLoss when `src` is not exactly `encoded_bytes` long.
Status CheckDecode(std::string_view codec, DType dtype, int64_t count, int64_t encoded_bytes,
                   std::span<const std::byte> src);

// kUnimplemented: the caller has to send this dtype raw.
Status UnsupportedDType(std::string_view codec, DType dtype);

// count * size_bytes, or -1 where that is negative or does not fit.
int64_t CheckedBytes(int64_t count, int64_t size_bytes);

}  // namespace jaxccomp
