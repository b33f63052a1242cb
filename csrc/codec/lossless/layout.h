// Layouts: how the words of a dtype are cut into byte planes; part of the wire format.
//
// In a trained tensor only the exponents are predictable. Each floating layout has the exponent in its
// own plane, without sign and mantissa bits.
#pragma once

#include <cstdint>

#include "common/dtype.h"

namespace jaxccomp::lossless {

// The numbers go on the wire.
enum class Layout : uint8_t {
  kBytes1 = 0,    // the bytes of the word, lowest first
  kBytes2 = 1,
  kBytes4 = 2,
  kBytes8 = 3,
  kBFloat16 = 4,  // mantissa << 1 | sign, exponent
  kFloat16 = 5,   // mantissa & 255, sign << 2 | mantissa >> 8, exponent
  kFloat32 = 6,   // mantissa bytes 0 and 1, mantissa >> 16 << 1 | sign, exponent
  kFloat64 = 7,   // mantissa bytes 0 to 5, sign << 4 | mantissa >> 48, e >> 8, e & 255, where
                  // e = (exponent - 896) mod 2048: 0 <= e < 256 in the range of float32
};
inline constexpr int kLayoutCount = 8;
inline constexpr int kMaxPlanes = 9;

struct LayoutInfo {
  int word_bytes;
  int planes;
  uint8_t width[kMaxPlanes];   // bits per value of each plane
};

inline constexpr LayoutInfo kLayoutTable[kLayoutCount] = {
    {1, 1, {8}},
    {2, 2, {8, 8}},
    {4, 4, {8, 8, 8, 8}},
    {8, 8, {8, 8, 8, 8, 8, 8, 8, 8}},
    {2, 2, {8, 8}},
    {2, 3, {8, 3, 5}},
    {4, 4, {8, 8, 8, 8}},
    {8, 9, {8, 8, 8, 8, 8, 8, 5, 3, 8}},
};

inline constexpr const LayoutInfo& Info(Layout layout) {
  return kLayoutTable[static_cast<int>(layout)];
}

struct DTypeLayout {
  Layout layout;
  int words;   // words per value: 2 for complex types
};

inline constexpr DTypeLayout kDTypeLayouts[kDTypeCount] = {
    {Layout::kBytes1, 1},                                                    // bool
    {Layout::kBytes1, 1}, {Layout::kBytes2, 1}, {Layout::kBytes4, 1}, {Layout::kBytes8, 1},
    {Layout::kBytes1, 1}, {Layout::kBytes2, 1}, {Layout::kBytes4, 1}, {Layout::kBytes8, 1},
    {Layout::kFloat16, 1}, {Layout::kBFloat16, 1}, {Layout::kFloat32, 1}, {Layout::kFloat64, 1},
    {Layout::kFloat32, 2}, {Layout::kFloat64, 2},                            // complex
    {Layout::kBytes1, 1},                                                    // opaque8
};

inline constexpr DTypeLayout LayoutOf(DType dtype) {
  return kDTypeLayouts[static_cast<int>(dtype)];
}

}  // namespace jaxccomp::lossless
