// Bits of floating-point values as integers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "common/dtype.h"

namespace jaxccomp::sparse {

template <typename Word>
struct FloatBits {
  Word infinity;
  Word nan;
};

// Calls f with the FloatBits of a real floating type.
template <typename F>
auto WithFloatBits(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kFloat16: return f(FloatBits<uint16_t>{0x7c00, 0x7e00});
    case DType::kBFloat16: return f(FloatBits<uint16_t>{0x7f80, 0x7fc0});
    case DType::kFloat32: return f(FloatBits<uint32_t>{0x7f800000, 0x7fc00000});
    default: return f(FloatBits<uint64_t>{0x7ff0000000000000, 0x7ff8000000000000});
  }
}

// Messages and callers' memory may be unaligned.
template <typename T>
T Load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}
template <typename T>
void Store(T value, std::byte* at) {
  std::memcpy(at, &value, sizeof(T));
}

template <typename Word>
constexpr Word MagnitudeOf(Word word) {
  return word & static_cast<Word>(static_cast<Word>(~Word{0}) >> 1);
}

}  // namespace jaxccomp::sparse
