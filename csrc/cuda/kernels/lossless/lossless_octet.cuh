// Functions on octets, groups of eight words. Octet q of a group of 64 words has bytes 8q to 8q + 7 of the group in
// every plane, and byte q in its bit planes. In the format's order within groups, an octet's words are whole runs of
// 16 bytes in memory, so that a thread can load an octet with vectors and cut it into planes without other threads. A
// plane's part of an octet is two registers of four bytes.
#pragma once

#include "codec/lossless/format.h"
#include "cuda/kernels/common/simt.cuh"

namespace jaxccomp::cuda {

using lossless::Layout;
using lossless::kBlockWords;
using lossless::kMaxLevels;
using lossless::kMaxPlanes;
using lossless::kMaxSymbols;
using lossless::kSegmentWords;
using namespace simt;

template <Layout layout>
struct Cutting {
  static constexpr Layout kLayout = layout;
  static constexpr int kWordBytes = lossless::kLayoutTable[static_cast<int>(layout)].word_bytes;
  static constexpr int kPlanes = lossless::kLayoutTable[static_cast<int>(layout)].planes;
  static constexpr int kRegisters = 2 * kWordBytes;   // for an octet's words
  static constexpr int kRuns = (8 * kWordBytes + 15) / 16;
  static constexpr bool kSignedTop = layout == Layout::kBFloat16 || layout == Layout::kFloat32;
};

constexpr uint64_t PackedWidths(Layout layout) {
  const lossless::LayoutInfo& info = lossless::kLayoutTable[static_cast<int>(layout)];
  uint64_t widths = 0;
  for (int p = 0; p < info.planes; ++p) widths |= static_cast<uint64_t>(info.width[p]) << (4 * p);
  return widths;
}
template <Layout layout>
inline constexpr uint64_t kWidths = PackedWidths(layout);

// Bits per value of plane p.
template <Layout layout>
JAXCCOMP_DEVICE int WidthOf(int p) {
  constexpr uint64_t widths = kWidths<layout>;
  return static_cast<int>(widths >> (4 * p) & 15);
}

// Like lossless::BitPlaneBytes and lossless::RawPlaneBytes, for one block.
JAXCCOMP_DEVICE int BitBytes(int width, int count) {
  return width * ((count + 7) >> 3);
}
JAXCCOMP_DEVICE int RawBytes(int width, int count) {
  return width == 8 ? count : BitBytes(width, count);
}

// The offset of octet o's bits in the first of the `width` bit planes of `count` values, and the distance to its bits
// in the next bit plane.
struct BitPlace {
  int at;
  int step;
};
JAXCCOMP_DEVICE BitPlace PlaceOfBits(int o, int width, int count) {
  const int group = o >> 3;
  const int step = group * 64 + 64 <= count ? 8 : ((count & 63) + 7) >> 3;
  return {group * 8 * width + (o & 7), step};
}
// The distance from octet o's bits to its bits in the next bit plane, for bit planes of `octets` octets.
JAXCCOMP_DEVICE int StepOfBits(int o, int octets) {
  const int left = octets - (o & ~7);
  return left < 8 ? left : 8;
}
// A mask of the octet's values beyond `count`, with all bits from 8 on set; requires count > 8 * o.
JAXCCOMP_DEVICE uint32_t Missing(int o, int count) {
  const int left = count - 8 * o;
  return ~0u << (left < 8 ? left : 8);
}
// A mask of the octet's values below `count`; requires count > 8 * o.
JAXCCOMP_DEVICE uint32_t Existing(int o, int count) {
  const int left = count - 8 * o;
  return left >= 8 ? 255u : (1u << left) - 1;
}

JAXCCOMP_CONSTEXPR uint32_t Splat(uint32_t byte) { return byte * 0x01010101u; }

// Sets bit 7 of every byte of x that is not 0; other bits are undefined.
JAXCCOMP_DEVICE uint32_t NotZero(uint32_t x) { return ((x & 0x7f7f7f7fu) + 0x7f7f7f7fu) | x; }
// Collects bit 7 of each of four bytes in a nibble.
JAXCCOMP_DEVICE uint32_t TopBits(uint32_t x) { return ((x & 0x80808080u) * 0x00204081u) >> 28; }
// Collects bit 7 of each of an octet's bytes in a byte: the first half moves to bits 3, which do not overlap in the
// product.
JAXCCOMP_DEVICE uint32_t TopBits(uint32_t low, uint32_t high) {
  return ((Merge(high, low >> 4, 0x80808080u) & 0x88888888u) * 0x00204081u) >> 24;
}
// The number of set bits in each of four bytes.
JAXCCOMP_DEVICE uint32_t CountBits(uint32_t x) {
  x -= x >> 1 & 0x55555555u;
  x = (x & 0x33333333u) + (x >> 2 & 0x33333333u);
  return (x + (x >> 4)) & 0x0f0f0f0fu;
}
// Spreads a nibble's bits to bit 0 of four bytes, and a byte's bits to bit 0 of eight nibbles.
JAXCCOMP_DEVICE uint32_t BitsToBytes(uint32_t nibble) {
  return (nibble * 0x00204081u) & 0x01010101u;
}
JAXCCOMP_DEVICE uint32_t BitsToNibbles(uint32_t x) {
  x = (x | x << 12) & 0x000f000fu;
  x = (x | x << 6) & 0x03030303u;
  return (x | x << 3) & 0x11111111u;
}

// Loads eight bytes at `base` + `at`; `base` is aligned to 4. Reads up to four bytes more.
JAXCCOMP_DEVICE void LoadOctet(const uint8_t* base, int at, uint32_t* v) {
  base += at & ~3;
  const uint32_t a = LoadAs<uint32_t>(base), b = LoadAs<uint32_t>(base + 4);
  const uint32_t c = LoadAs<uint32_t>(base + 8);
  const auto bits = static_cast<unsigned>(8 * (at & 3));
  v[0] = FunnelRight(a, b, bits);
  v[1] = FunnelRight(b, c, bits);
}

// Stores the first `count` bytes of an octet, at most 8, at any address.
JAXCCOMP_DEVICE void StoreBytes(uint8_t* at, uint32_t low, uint32_t high, int count) {
  JAXCCOMP_NO_UNROLL
  for (int i = 0; i < 8 && i < count; ++i) {
    at[i] = static_cast<uint8_t>(low);
    low = FunnelRight(low, high, 8);
    high >>= 8;
  }
}

// Transposes a 4 x 4 matrix of bytes.
JAXCCOMP_DEVICE void Transpose4(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d) {
  const uint32_t ab = Permute(a, b, 0x5140), cd = Permute(c, d, 0x5140);
  const uint32_t ab2 = Permute(a, b, 0x7362), cd2 = Permute(c, d, 0x7362);
  a = Permute(ab, cd, 0x5410);
  b = Permute(ab, cd, 0x7632);
  c = Permute(ab2, cd2, 0x5410);
  d = Permute(ab2, cd2, 0x7632);
}

// Converts byte planes to the format's planes, for the words' top bytes; p[i] is plane i of four words.
template <Layout layout>
JAXCCOMP_DEVICE void CutTop(uint32_t* p) {
  constexpr int kTop = Cutting<layout>::kWordBytes - 1;
  if constexpr (Cutting<layout>::kSignedTop) {
    const uint32_t low = p[kTop - 1], high = p[kTop];
    p[kTop - 1] = Merge(low << 1, high >> 7, Splat(0xfe));
    p[kTop] = Merge(high << 1, low >> 7, Splat(0xfe));
  } else if constexpr (layout == Layout::kFloat16) {
    const uint32_t top = p[1];
    p[1] = (top & Splat(3)) | (top >> 5 & Splat(4));
    p[2] = top >> 2 & Splat(31);
  } else if constexpr (layout == Layout::kFloat64) {
    const uint32_t low = p[6], top = p[7];
    // No borrow between bytes: bit 7 of each is set.
    const uint32_t biased = (top | Splat(0x80)) - Splat(896 >> 4);
    p[6] = (low & Splat(15)) | (top >> 3 & Splat(16));
    p[7] = biased >> 4 & Splat(7);
    p[8] = Merge(biased << 4, low >> 4, Splat(0xf0));
  }
}

template <Layout layout>
JAXCCOMP_DEVICE void JoinTop(uint32_t* p) {
  constexpr int kTop = Cutting<layout>::kWordBytes - 1;
  if constexpr (Cutting<layout>::kSignedTop) {
    const uint32_t low = p[kTop - 1], exponent = p[kTop];
    p[kTop - 1] = Merge(low >> 1, exponent << 7, Splat(0x7f));
    p[kTop] = Merge(exponent >> 1, low << 7, Splat(0x7f));
  } else if constexpr (layout == Layout::kFloat16) {
    const uint32_t high = p[1];
    p[1] = (high & Splat(3)) | (high << 5 & Splat(0x80)) | (p[2] << 2 & Splat(31 << 2));
  } else if constexpr (layout == Layout::kFloat64) {
    const uint32_t high = p[6];
    const uint32_t biased = (p[7] << 4 & Splat(0x70)) | (p[8] >> 4 & Splat(15));
    p[6] = Merge(high, p[8] << 4, Splat(15));
    p[7] = Merge(biased + Splat(896 >> 4), high << 3, Splat(0x7f));
  }
}

// Cut converts an octet's words, in the order of their places, to its parts of the planes; Join is the inverse.
template <Layout layout>
JAXCCOMP_DEVICE void Cut(const uint32_t* w, uint32_t (*planes)[2]) {
  constexpr int kBytes = Cutting<layout>::kWordBytes;
  JAXCCOMP_UNROLL
  for (int h = 0; h < 2; ++h) {
    uint32_t p[kMaxPlanes];
    const uint32_t* const v = w + h * kBytes;
    if constexpr (kBytes == 1) {
      p[0] = v[0];
    } else if constexpr (kBytes == 2) {
      p[0] = Permute(v[0], v[1], 0x6420);
      p[1] = Permute(v[0], v[1], 0x7531);
    } else {
      constexpr int kStep = kBytes / 4;
      JAXCCOMP_UNROLL
      for (int part = 0; part < kStep; ++part) {
        uint32_t* const q = p + 4 * part;
        JAXCCOMP_UNROLL
        for (int i = 0; i < 4; ++i) q[i] = v[i * kStep + part];
        Transpose4(q[0], q[1], q[2], q[3]);
      }
    }
    CutTop<layout>(p);
    JAXCCOMP_UNROLL
    for (int i = 0; i < Cutting<layout>::kPlanes; ++i) planes[i][h] = p[i];
  }
}

template <Layout layout>
JAXCCOMP_DEVICE void Join(const uint32_t (*planes)[2], uint32_t* w) {
  constexpr int kBytes = Cutting<layout>::kWordBytes;
  JAXCCOMP_UNROLL
  for (int h = 0; h < 2; ++h) {
    uint32_t p[kMaxPlanes];
    JAXCCOMP_UNROLL
    for (int i = 0; i < Cutting<layout>::kPlanes; ++i) p[i] = planes[i][h];
    JoinTop<layout>(p);
    uint32_t* const v = w + h * kBytes;
    if constexpr (kBytes == 1) {
      v[0] = p[0];
    } else if constexpr (kBytes == 2) {
      v[0] = Permute(p[0], p[1], 0x5140);
      v[1] = Permute(p[0], p[1], 0x7362);
    } else {
      constexpr int kStep = kBytes / 4;
      JAXCCOMP_UNROLL
      for (int part = 0; part < kStep; ++part) {
        uint32_t* const q = p + 4 * part;
        Transpose4(q[0], q[1], q[2], q[3]);
        JAXCCOMP_UNROLL
        for (int i = 0; i < 4; ++i) v[i * kStep + part] = q[i];
      }
    }
  }
}

// The index of the first word of run r of octet o in memory. A run has 16 bytes, or 8 for words of one byte.
template <Layout layout>
JAXCCOMP_DEVICE int WordOfRun(int o, int r) {
  constexpr int kBytes = Cutting<layout>::kWordBytes;
  if constexpr (kBytes == 1) {
    return 8 * o;
  } else {
    constexpr int kLane = 16 / kBytes;
    const int q = o & 7;
    const int k = (q & 1) * Cutting<layout>::kRuns + r;
    return (o >> 3) * 64 + k * 4 * kLane + (q >> 1) * kLane;
  }
}

template <int bytes>
struct WordOf;
template <> struct WordOf<1> { using Type = uint8_t; };
template <> struct WordOf<2> { using Type = uint16_t; };
template <> struct WordOf<4> { using Type = uint32_t; };
template <> struct WordOf<8> { using Type = uint64_t; };

// PushWord shifts an octet in registers up by a word, and makes `word` the first; PopWord is the inverse.
template <int bytes>
JAXCCOMP_DEVICE void PushWord(uint32_t* w, uint64_t word) {
  constexpr int kRegisters = 2 * bytes, kStep = bytes / 4;
  JAXCCOMP_UNROLL
  for (int r = kRegisters - 1; r > 0; --r) {
    if constexpr (kStep > 0) {
      if (r >= kStep) w[r] = w[r - kStep];
    } else {
      w[r] = FunnelRight(w[r - 1], w[r], 32 - 8 * bytes);
    }
  }
  w[0] = static_cast<uint32_t>(kStep > 0 ? word : w[0] << (8 * bytes) | word);
  if constexpr (bytes == 8) w[1] = static_cast<uint32_t>(word >> 32);
}
template <int bytes>
JAXCCOMP_DEVICE uint64_t PopWord(uint32_t* w) {
  constexpr int kRegisters = 2 * bytes, kStep = bytes / 4;
  uint64_t word = w[0];
  if constexpr (bytes == 8) word |= static_cast<uint64_t>(w[1]) << 32;
  JAXCCOMP_UNROLL
  for (int r = 0; r < kRegisters; ++r) {
    if constexpr (kStep > 0) {
      if (r + kStep < kRegisters) w[r] = w[r + kStep];
    } else {
      w[r] = r + 1 < kRegisters ? FunnelRight(w[r], w[r + 1], 8 * bytes) : w[r] >> (8 * bytes);
    }
  }
  return word;
}

// The index in memory of word i of octet o, in a block of `count` words.
template <Layout layout>
JAXCCOMP_DEVICE int WordOfOctet(int o, int i, int count) {
  constexpr int kRunWords = 8 / Cutting<layout>::kRuns;
  const bool full = (o >> 3) * 64 + 64 <= count;
  return full ? WordOfRun<layout>(o, i / kRunWords) + i % kRunWords : 8 * o + i;
}

// Loads the words of octet o of a block of `count` words at `base`; missing words are 0. kVectors requires a whole
// group, and `base` aligned to 16 bytes; otherwise `base` is aligned to words.
template <Layout layout, bool kVectors>
JAXCCOMP_DEVICE void LoadWords(const uint8_t* base, int o, int count, uint32_t* w) {
  constexpr int kBytes = Cutting<layout>::kWordBytes;
  using Word = typename WordOf<kBytes>::Type;
  if constexpr (kVectors) {
    JAXCCOMP_UNROLL
    for (int r = 0; r < Cutting<layout>::kRuns; ++r) {
      const uint8_t* const at = base + WordOfRun<layout>(o, r) * kBytes;
      if constexpr (kBytes == 1) {
        LoadPair(at, w);
      } else {
        const Vector v = LoadVector(at);
        JAXCCOMP_UNROLL
        for (int i = 0; i < 4; ++i) w[4 * r + i] = v.x[i];
      }
    }
  } else {
    JAXCCOMP_UNROLL
    for (int i = 0; i < Cutting<layout>::kRegisters; ++i) w[i] = 0;
    // Rare: use few registers.
    JAXCCOMP_NO_UNROLL
    for (int i = 7; i >= 0; --i) {
      const int word = WordOfOctet<layout>(o, i, count);
      PushWord<kBytes>(w, word < count ? LoadAs<Word>(base + word * kBytes) : 0);
    }
  }
}

// The inverse of LoadWords; destroys `w`.
template <Layout layout, bool kVectors>
JAXCCOMP_DEVICE void StoreWords(uint8_t* base, int o, int count, uint32_t* w) {
  constexpr int kBytes = Cutting<layout>::kWordBytes;
  using Word = typename WordOf<kBytes>::Type;
  if constexpr (kVectors) {
    JAXCCOMP_UNROLL
    for (int r = 0; r < Cutting<layout>::kRuns; ++r) {
      uint8_t* const at = base + WordOfRun<layout>(o, r) * kBytes;
      if constexpr (kBytes == 1) {
        StorePair(at, w);
      } else {
        StoreVector(at, {{w[4 * r], w[4 * r + 1], w[4 * r + 2], w[4 * r + 3]}});
      }
    }
  } else {
    JAXCCOMP_NO_UNROLL
    for (int i = 0; i < 8; ++i) {
      const int word = WordOfOctet<layout>(o, i, count);
      const auto value = static_cast<Word>(PopWord<kBytes>(w));
      if (word < count) StoreAs<Word>(base + word * kBytes, value);
    }
  }
}

// PackBit collects bit `b` of an octet's bytes in a byte; UnpackBit is the inverse.
JAXCCOMP_DEVICE uint32_t PackBit(const uint32_t* v, int b) {
  return TopBits(v[0] << (7 - b), v[1] << (7 - b));
}
JAXCCOMP_DEVICE void UnpackBit(uint32_t bits, int b, uint32_t* v) {
  v[0] |= BitsToBytes(bits & 15) << b;
  v[1] |= BitsToBytes(bits >> 4) << b;
}

}  // namespace jaxccomp::cuda
