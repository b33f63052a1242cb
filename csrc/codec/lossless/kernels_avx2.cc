// Kernels for x86 with AVX2: 32 words at a time. There is no instruction that compresses or
// expands bytes; eight at a time are moved by a shuffle out of a table with a row per mask.
#if defined(__x86_64__)
#if !defined(__AVX2__)
#error "compile this file with -mavx2 -mpopcnt"
#endif

#include <immintrin.h>

#include "codec/lossless/generic.inl"

namespace jaxccomp::lossless {
namespace {

struct ShuffleTable {
  uint8_t row[256][8];
};

// Row m brings the bytes whose bits are set in m to the front.
constexpr ShuffleTable MakeCompress() {
  ShuffleTable table = {};
  for (int m = 0; m < 256; ++m) {
    int n = 0;
    for (int b = 0; b < 8; ++b) {
      if (m >> b & 1) table.row[m][n++] = static_cast<uint8_t>(b);
    }
  }
  return table;
}

// Row m takes the first bytes to where the bits of m are set, and 0 to the other places.
constexpr ShuffleTable MakeExpand() {
  ShuffleTable table = {};
  for (int m = 0; m < 256; ++m) {
    uint8_t n = 0;
    for (int b = 0; b < 8; ++b) {
      const bool set = m >> b & 1;
      table.row[m][b] = set ? n : 0x80;
      n = static_cast<uint8_t>(n + set);
    }
  }
  return table;
}

alignas(64) constexpr ShuffleTable kCompress = MakeCompress();
alignas(64) constexpr ShuffleTable kExpand = MakeExpand();

inline __m256i LoadVector(const void* at) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(at));
}
inline void StoreVector(void* at, __m256i v) {
  _mm256_storeu_si256(static_cast<__m256i*>(at), v);
}
inline __m128i LoadEight(const void* at) {
  return _mm_loadl_epi64(static_cast<const __m128i*>(at));
}

inline __m256i InOrder(__m256i v) { return _mm256_permute4x64_epi64(v, 0xd8); }

// Two vectors of 16 words of two bytes to two planes of 32 bytes.
inline void Deinterleave2(__m256i a, __m256i b, __m256i* planes) {
  const __m256i low = _mm256_set1_epi16(0xff);
  planes[0] =
      InOrder(_mm256_packus_epi16(_mm256_and_si256(a, low), _mm256_and_si256(b, low)));
  planes[1] = InOrder(_mm256_packus_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8)));
}

inline void Interleave2(__m256i low, __m256i high, __m256i* out) {
  const __m256i a = InOrder(low), b = InOrder(high);
  out[0] = _mm256_unpacklo_epi8(a, b);
  out[1] = _mm256_unpackhi_epi8(a, b);
}

// Four vectors of 8 words of four bytes to four planes. In each half, the bytes of a place are
// brought together first.
inline void Deinterleave4(const __m256i* in, __m256i* planes) {
  const __m256i gather = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  __m256i v[4];
  for (int i = 0; i < 4; ++i) v[i] = _mm256_shuffle_epi8(in[i], gather);
  const __m256i a = _mm256_unpacklo_epi32(v[0], v[1]), b = _mm256_unpacklo_epi32(v[2], v[3]);
  const __m256i c = _mm256_unpackhi_epi32(v[0], v[1]), d = _mm256_unpackhi_epi32(v[2], v[3]);
  planes[0] = _mm256_permutevar8x32_epi32(_mm256_unpacklo_epi64(a, b), order);
  planes[1] = _mm256_permutevar8x32_epi32(_mm256_unpackhi_epi64(a, b), order);
  planes[2] = _mm256_permutevar8x32_epi32(_mm256_unpacklo_epi64(c, d), order);
  planes[3] = _mm256_permutevar8x32_epi32(_mm256_unpackhi_epi64(c, d), order);
}

inline void Interleave4(const __m256i* planes, __m256i* out) {
  const __m256i a = _mm256_unpacklo_epi8(planes[0], planes[1]);
  const __m256i b = _mm256_unpackhi_epi8(planes[0], planes[1]);
  const __m256i c = _mm256_unpacklo_epi8(planes[2], planes[3]);
  const __m256i d = _mm256_unpackhi_epi8(planes[2], planes[3]);
  const __m256i w0 = _mm256_unpacklo_epi16(a, c), w1 = _mm256_unpackhi_epi16(a, c);
  const __m256i w2 = _mm256_unpacklo_epi16(b, d), w3 = _mm256_unpackhi_epi16(b, d);
  out[0] = _mm256_permute2x128_si256(w0, w1, 0x20);
  out[1] = _mm256_permute2x128_si256(w2, w3, 0x20);
  out[2] = _mm256_permute2x128_si256(w0, w1, 0x31);
  out[3] = _mm256_permute2x128_si256(w2, w3, 0x31);
}

// `kBytes` vectors of words to as many planes of 32 bytes, lowest byte first.
template <int kBytes>
inline void Deinterleave(const __m256i* in, __m256i* planes) {
  if constexpr (kBytes == 1) {
    planes[0] = in[0];
  } else if constexpr (kBytes == 2) {
    Deinterleave2(in[0], in[1], planes);
  } else if constexpr (kBytes == 4) {
    Deinterleave4(in, planes);
  } else {
    __m256i low[4], high[4];
    for (int i = 0; i < 4; ++i) {
      const __m256 a = _mm256_castsi256_ps(in[2 * i]), b = _mm256_castsi256_ps(in[2 * i + 1]);
      low[i] = InOrder(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88)));
      high[i] = InOrder(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd)));
    }
    Deinterleave4(low, planes);
    Deinterleave4(high, planes + 4);
  }
}

template <int kBytes>
inline void InterleavePlanes(const __m256i* planes, __m256i* out) {
  if constexpr (kBytes == 1) {
    out[0] = planes[0];
  } else if constexpr (kBytes == 2) {
    Interleave2(planes[0], planes[1], out);
  } else if constexpr (kBytes == 4) {
    Interleave4(planes, out);
  } else {
    __m256i low[4], high[4];
    Interleave4(planes, low);
    Interleave4(planes + 4, high);
    for (int i = 0; i < 4; ++i) {
      const __m256i a = InOrder(low[i]), b = InOrder(high[i]);
      out[2 * i] = _mm256_unpacklo_epi32(a, b);
      out[2 * i + 1] = _mm256_unpackhi_epi32(a, b);
    }
  }
}

template <int kShift>
inline __m256i ShiftRight8(__m256i v) {
  return _mm256_and_si256(_mm256_srli_epi16(v, kShift), _mm256_set1_epi8(0xff >> kShift));
}

template <int kShift>
inline __m256i ShiftLeft8(__m256i v) {
  return _mm256_and_si256(_mm256_slli_epi16(v, kShift),
                          _mm256_set1_epi8(static_cast<char>(0xff << kShift)));
}

inline __m256i And8(__m256i v, int mask) {
  return _mm256_and_si256(v, _mm256_set1_epi8(static_cast<char>(mask)));
}

// The top bytes of words to the planes that share them.
template <Layout layout>
inline void CutTop(__m256i* p) {
  constexpr int kTop = Info(layout).word_bytes - 2;
  if constexpr (layout == Layout::kBFloat16 || layout == Layout::kFloat32) {
    const __m256i low = p[kTop], top = p[kTop + 1], zero = _mm256_setzero_si256();
    // A byte below 0 compares as -1, which is subtracted.
    p[kTop] = _mm256_sub_epi8(_mm256_add_epi8(low, low), _mm256_cmpgt_epi8(zero, top));
    p[kTop + 1] = _mm256_sub_epi8(_mm256_add_epi8(top, top), _mm256_cmpgt_epi8(zero, low));
  } else if constexpr (layout == Layout::kFloat16) {
    const __m256i top = p[1];
    p[1] = _mm256_or_si256(And8(top, 3), And8(_mm256_srli_epi16(top, 5), 4));
    p[2] = And8(_mm256_srli_epi16(top, 2), 31);
  } else if constexpr (layout == Layout::kFloat64) {
    const __m256i low = p[6], top = p[7];
    const __m256i biased = _mm256_sub_epi8(top, _mm256_set1_epi8(896 >> 4));
    p[6] = _mm256_or_si256(And8(low, 15), And8(_mm256_srli_epi16(top, 3), 16));
    p[7] = And8(_mm256_srli_epi16(biased, 4), 7);
    p[8] = _mm256_or_si256(ShiftLeft8<4>(biased), ShiftRight8<4>(low));
  }
}

template <Layout layout>
inline void JoinTop(__m256i* p) {
  constexpr int kTop = Info(layout).word_bytes - 2;
  if constexpr (layout == Layout::kBFloat16 || layout == Layout::kFloat32) {
    const __m256i low = p[kTop], exponent = p[kTop + 1];
    p[kTop] = _mm256_or_si256(ShiftRight8<1>(low), ShiftLeft8<7>(exponent));
    p[kTop + 1] = _mm256_or_si256(ShiftRight8<1>(exponent), ShiftLeft8<7>(low));
  } else if constexpr (layout == Layout::kFloat16) {
    const __m256i sign_high = p[1];
    p[1] = _mm256_or_si256(
        _mm256_or_si256(And8(sign_high, 3), And8(_mm256_slli_epi16(sign_high, 5), 128)),
        And8(_mm256_slli_epi16(p[2], 2), 31 << 2));
  } else if constexpr (layout == Layout::kFloat64) {
    const __m256i sign_high = p[6];
    const __m256i biased = _mm256_or_si256(ShiftLeft8<4>(p[7]), ShiftRight8<4>(p[8]));
    const __m256i exponent = And8(_mm256_add_epi8(biased, _mm256_set1_epi8(896 >> 4)), 127);
    p[7] = _mm256_or_si256(exponent, And8(_mm256_slli_epi16(sign_high, 3), 128));
    p[6] = _mm256_or_si256(And8(sign_high, 15), ShiftLeft8<4>(p[8]));
  }
}

template <Layout layout, bool kDelta>
inline int64_t SplitGroups(const void* src, const void* ref, int64_t count,
                           uint8_t* const* planes) {
  constexpr int kBytes = Info(layout).word_bytes, kPlanes = Info(layout).planes;
  auto* from = static_cast<const uint8_t*>(src);
  auto* other = static_cast<const uint8_t*>(ref);
  uint8_t* out[kPlanes];   // of our own: a store could alter `planes`, for all the compiler knows
  for (int p = 0; p < kPlanes; ++p) out[p] = planes[p];
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    __m256i words[kBytes], cut[kPlanes];
    for (int b = 0; b < kBytes; ++b) {
      words[b] = LoadVector(from + 32 * b);
      if constexpr (kDelta) words[b] = _mm256_xor_si256(words[b], LoadVector(other + 32 * b));
    }
    Deinterleave<kBytes>(words, cut);
    CutTop<layout>(cut);
    for (int p = 0; p < kPlanes; ++p) StoreVector(out[p] + i, cut[p]);
    from += 32 * kBytes;
    if constexpr (kDelta) other += 32 * kBytes;
  }
  return i;
}

template <Layout layout>
void Split(const void* src, const void* ref, int64_t count, uint8_t* const* planes) {
  const int64_t done = ref == nullptr ? SplitGroups<layout, false>(src, ref, count, planes)
                                      : SplitGroups<layout, true>(src, ref, count, planes);
  SplitFrom<layout>(done, src, ref, count, planes);
}

template <Layout layout, bool kDelta>
inline int64_t MergeGroups(void* dst, const void* ref, int64_t count,
                           const uint8_t* const* planes) {
  constexpr int kBytes = Info(layout).word_bytes, kPlanes = Info(layout).planes;
  auto* to = static_cast<uint8_t*>(dst);
  auto* other = static_cast<const uint8_t*>(ref);
  const uint8_t* in[kPlanes];
  for (int p = 0; p < kPlanes; ++p) in[p] = planes[p];
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    __m256i words[kBytes], cut[kPlanes];
    for (int p = 0; p < kPlanes; ++p) cut[p] = LoadVector(in[p] + i);
    JoinTop<layout>(cut);
    InterleavePlanes<kBytes>(cut, words);
    for (int b = 0; b < kBytes; ++b) {
      if constexpr (kDelta) words[b] = _mm256_xor_si256(words[b], LoadVector(other + 32 * b));
      StoreVector(to + 32 * b, words[b]);
    }
    to += 32 * kBytes;
    if constexpr (kDelta) other += 32 * kBytes;
  }
  return i;
}

template <Layout layout>
void Merge(void* dst, const void* ref, int64_t count, const uint8_t* const* planes) {
  const int64_t done = ref == nullptr ? MergeGroups<layout, false>(dst, ref, count, planes)
                                      : MergeGroups<layout, true>(dst, ref, count, planes);
  MergeFrom<layout>(done, dst, ref, count, planes);
}

// A bit per byte of 64 that equals the symbol.
struct Half {
  __m256i low, high;
};

inline uint64_t Equal(Half v, __m256i symbol) {
  const auto low = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(v.low, symbol)));
  const auto high = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(v.high, symbol)));
  return low | static_cast<uint64_t>(high) << 32;
}

inline uint8_t* Compress(const uint8_t* in, uint64_t mask, uint8_t* out) {
  for (int b = 0; b < 64; b += 8) {
    const unsigned m = mask >> b & 255;
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out),
                     _mm_shuffle_epi8(LoadEight(in + b), LoadEight(kCompress.row[m])));
    out += _mm_popcnt_u32(m);
  }
  return out;
}

template <int kCodeBits>
int64_t EncodeLevel(const uint8_t* in, int64_t count, const uint8_t* symbols, uint8_t* bits,
                    uint8_t* escapes) {
  __m256i wanted[3];
  for (int s = 0; s < (kCodeBits == 2 ? 3 : 1); ++s) {
    wanted[s] = _mm256_set1_epi8(static_cast<char>(symbols[s]));
  }
  uint8_t* const first = escapes;
  for (int64_t i = 0; i < count; i += 64) {
    const Half v = {LoadVector(in + i), LoadVector(in + i + 32)};
    const int64_t piece_bytes = count - i < 64 ? PieceBytes(count - i) : 8;
    const uint64_t other = ~Equal(v, wanted[0]) & LowBits(count - i);
    uint64_t escape = other;
    if constexpr (kCodeBits == 2) {
      const uint64_t low = other & ~Equal(v, wanted[2]), high = other & ~Equal(v, wanted[1]);
      Store<uint64_t>(bits, 0, low);
      Store<uint64_t>(bits + piece_bytes, 0, high);
      escape = low & high;
    } else {
      Store<uint64_t>(bits, 0, other);
    }
    bits += kCodeBits * piece_bytes;
    escapes = Compress(in + i, escape, escapes);
  }
  return escapes - first;
}

// A byte of ones where a bit is set.
inline __m256i ToBytes(uint32_t bits) {
  const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202,
                                            0x0303030303030303);
  const __m256i place = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
  const __m256i v = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(bits)), spread);
  return _mm256_cmpeq_epi8(_mm256_and_si256(v, place), place);
}

inline __m128i ExpandEight(unsigned mask, const uint8_t*& from) {
  const __m128i v = _mm_shuffle_epi8(LoadEight(from), LoadEight(kExpand.row[mask]));
  from += _mm_popcnt_u32(mask);
  return v;
}

template <int kCodeBits>
inline const uint8_t* Expand(uint32_t low, uint32_t high, const __m256i* symbols,
                             const uint8_t* escapes, uint8_t* out) {
  const uint32_t escape = low & high;
  const __m128i a = ExpandEight(escape & 255, escapes);
  const __m128i b = ExpandEight(escape >> 8 & 255, escapes);
  const __m128i c = ExpandEight(escape >> 16 & 255, escapes);
  const __m128i d = ExpandEight(escape >> 24, escapes);
  const __m256i escaped = _mm256_set_m128i(_mm_unpacklo_epi64(c, d), _mm_unpacklo_epi64(a, b));
  const __m256i first = ToBytes(low);
  __m256i v;
  if constexpr (kCodeBits == 2) {
    const __m256i second = ToBytes(high);
    const __m256i both = _mm256_and_si256(first, second);
    v = _mm256_blendv_epi8(symbols[0], symbols[1], first);
    v = _mm256_blendv_epi8(v, symbols[2], second);
    v = _mm256_blendv_epi8(v, escaped, both);
  } else {
    v = _mm256_blendv_epi8(symbols[0], escaped, first);
  }
  StoreVector(out, v);
  return escapes;
}

template <int kCodeBits>
int64_t DecodeLevel(const uint8_t* bits, int64_t count, const uint8_t* symbols,
                    const uint8_t* escapes, uint8_t* out) {
  __m256i wanted[3];
  for (int s = 0; s < (kCodeBits == 2 ? 3 : 1); ++s) {
    wanted[s] = _mm256_set1_epi8(static_cast<char>(symbols[s]));
  }
  const uint8_t* const first = escapes;
  for (int64_t i = 0; i < count; i += 64) {
    const int64_t left = count - i;
    const int64_t piece_bytes = left < 64 ? PieceBytes(left) : 8;
    const uint64_t valid = LowBits(left);
    const uint64_t low = Load<uint64_t>(bits) & valid;
    const uint64_t high = kCodeBits == 2 ? Load<uint64_t>(bits + piece_bytes) & valid : low;
    bits += kCodeBits * piece_bytes;
    escapes = Expand<kCodeBits>(static_cast<uint32_t>(low), static_cast<uint32_t>(high), wanted,
                                escapes, out + i);
    escapes = Expand<kCodeBits>(static_cast<uint32_t>(low >> 32),
                                static_cast<uint32_t>(high >> 32), wanted, escapes, out + i + 32);
  }
  return escapes - first;
}

void Pack(const uint8_t* in, int64_t count, int width, uint8_t* bits) {
  for (int64_t i = 0; i < count; i += 64) {
    const Half v = {LoadVector(in + i), LoadVector(in + i + 32)};
    const int64_t piece_bytes = count - i < 64 ? PieceBytes(count - i) : 8;
    for (int b = 0; b < width; ++b) {
      // Brings bit b to the top of each byte; what comes along from the byte below stays lower.
      const __m128i shift = _mm_cvtsi32_si128(7 - b);
      const auto low =
          static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_sll_epi16(v.low, shift)));
      const auto high =
          static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_sll_epi16(v.high, shift)));
      Store<uint64_t>(bits, 0, (low | static_cast<uint64_t>(high) << 32) & LowBits(count - i));
      bits += piece_bytes;
    }
  }
}

void Unpack(const uint8_t* bits, int64_t count, int width, uint8_t* out) {
  for (int64_t i = 0; i < count; i += 64) {
    const int64_t piece_bytes = count - i < 64 ? PieceBytes(count - i) : 8;
    Half v = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (int b = 0; b < width; ++b) {
      const uint64_t piece = Load<uint64_t>(bits);
      const __m256i bit = _mm256_set1_epi8(static_cast<char>(1 << b));
      v.low = _mm256_or_si256(
          v.low, _mm256_and_si256(ToBytes(static_cast<uint32_t>(piece)), bit));
      v.high = _mm256_or_si256(
          v.high, _mm256_and_si256(ToBytes(static_cast<uint32_t>(piece >> 32)), bit));
      bits += piece_bytes;
    }
    StoreVector(out + i, v.low);
    StoreVector(out + i + 32, v.high);
  }
}

}  // namespace

#define JAXCCOMP_LOSSLESS_KERNELS kAvx2Kernels
#define JAXCCOMP_LOSSLESS_NAME "avx2"
#include "codec/lossless/table.inl"

}  // namespace jaxccomp::lossless
#endif
