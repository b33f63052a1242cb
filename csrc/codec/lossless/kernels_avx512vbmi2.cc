// Kernels for x86 with AVX-512 VBMI and VBMI2 (Intel since Ice Lake, AMD since Zen 4): 64 words at
// a time, compressed and expanded by single instructions. Compressing goes to a register and from
// there to memory: with a memory destination the instruction is microcode on Zen 4.
#if defined(__x86_64__)
#if !defined(__AVX512VBMI__) || !defined(__AVX512VBMI2__) || !defined(__AVX512BW__)
#error "compile this file with -mavx512vbmi -mavx512vbmi2 and the other AVX-512 flags"
#endif

#include <immintrin.h>

#include "codec/lossless/generic.inl"

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 warns of its own intrinsics, whose unused operand is left undefined on purpose.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace jaxccomp::lossless {
namespace {

struct alignas(64) Indices {
  uint8_t at[64];
  __m512i Vector() const { return _mm512_load_si512(at); }
};

// Of a pair of vectors, words of `size` bytes: the bytes [first, first + take) of each word, all
// words' first bytes first.
constexpr Indices Gather(int size, int first, int take) {
  Indices indices = {};
  const int words = 128 / size;
  for (int p = 0; p < take && p * words < 64; ++p) {
    for (int i = 0; i < words; ++i) {
      indices.at[p * words + i] = static_cast<uint8_t>(i * size + first + p);
    }
  }
  return indices;
}

// The inverse for words of two bytes: the first or second half of the interleaved bytes of a pair.
constexpr Indices Interleave(int half) {
  Indices indices = {};
  for (int i = 0; i < 64; ++i) {
    indices.at[i] = static_cast<uint8_t>((i & 1) * 64 + half * 32 + i / 2);
  }
  return indices;
}

// The inverse of Gather for a vector of 16 words with 4 planes, or 8 words with 8.
constexpr Indices Scatter(int size) {
  Indices indices = {};
  const int words = 64 / size;
  for (int i = 0; i < 64; ++i) {
    indices.at[i] = static_cast<uint8_t>(i % size * words + i / size);
  }
  return indices;
}

alignas(64) constexpr Indices kEven = Gather(2, 0, 1);
alignas(64) constexpr Indices kOdd = Gather(2, 1, 1);
alignas(64) constexpr Indices kLow4 = Gather(4, 0, 2);
alignas(64) constexpr Indices kHigh4 = Gather(4, 2, 2);
alignas(64) constexpr Indices kLow8 = Gather(8, 0, 4);
alignas(64) constexpr Indices kHigh8 = Gather(8, 4, 4);
alignas(64) constexpr Indices kInterleaveLow = Interleave(0);
alignas(64) constexpr Indices kInterleaveHigh = Interleave(1);
alignas(64) constexpr Indices kScatter4 = Scatter(4);
alignas(64) constexpr Indices kScatter8 = Scatter(8);

inline __m512i LoadVector(const void* at) { return _mm512_loadu_si512(at); }
inline void StoreVector(void* at, __m512i v) { _mm512_storeu_si512(at, v); }

// A load that the compiler does not fold into its uses: twice from an unaligned address costs more
// than a register, and expanding out of memory is microcode on AMD.
inline __m512i LoadOnce(const void* at) {
  __m512i v = LoadVector(at);
  asm("" : "+v"(v));
  return v;
}

inline __m512i Pair(__m512i a, const Indices& indices, __m512i b) {
  return _mm512_permutex2var_epi8(a, indices.Vector(), b);
}

// Columns of a matrix of 4 x 4 pieces of 16 bytes.
inline void Transpose4(const __m512i* in, __m512i* out) {
  const __m512i a = _mm512_shuffle_i32x4(in[0], in[1], 0x44);
  const __m512i b = _mm512_shuffle_i32x4(in[2], in[3], 0x44);
  const __m512i c = _mm512_shuffle_i32x4(in[0], in[1], 0xee);
  const __m512i d = _mm512_shuffle_i32x4(in[2], in[3], 0xee);
  out[0] = _mm512_shuffle_i32x4(a, b, 0x88);
  out[1] = _mm512_shuffle_i32x4(a, b, 0xdd);
  out[2] = _mm512_shuffle_i32x4(c, d, 0x88);
  out[3] = _mm512_shuffle_i32x4(c, d, 0xdd);
}

// `kBytes` vectors of words to as many planes of 64 bytes, lowest byte first.
template <int kBytes>
inline void Deinterleave(const __m512i* in, __m512i* planes) {
  if constexpr (kBytes == 1) {
    planes[0] = in[0];
  } else if constexpr (kBytes == 2) {
    planes[0] = Pair(in[0], kEven, in[1]);
    planes[1] = Pair(in[0], kOdd, in[1]);
  } else if constexpr (kBytes == 4) {
    // Of each 32 words, the planes 0 and 1 and the planes 2 and 3.
    const __m512i a = Pair(in[0], kLow4, in[1]), b = Pair(in[2], kLow4, in[3]);
    const __m512i c = Pair(in[0], kHigh4, in[1]), d = Pair(in[2], kHigh4, in[3]);
    planes[0] = _mm512_shuffle_i64x2(a, b, 0x44);
    planes[1] = _mm512_shuffle_i64x2(a, b, 0xee);
    planes[2] = _mm512_shuffle_i64x2(c, d, 0x44);
    planes[3] = _mm512_shuffle_i64x2(c, d, 0xee);
  } else {
    __m512i low[4], high[4];
    for (int i = 0; i < 4; ++i) {
      low[i] = Pair(in[2 * i], kLow8, in[2 * i + 1]);
      high[i] = Pair(in[2 * i], kHigh8, in[2 * i + 1]);
    }
    Transpose4(low, planes);
    Transpose4(high, planes + 4);
  }
}

template <int kBytes>
inline void InterleavePlanes(const __m512i* planes, __m512i* out) {
  if constexpr (kBytes == 1) {
    out[0] = planes[0];
  } else if constexpr (kBytes == 2) {
    out[0] = Pair(planes[0], kInterleaveLow, planes[1]);
    out[1] = Pair(planes[0], kInterleaveHigh, planes[1]);
  } else if constexpr (kBytes == 4) {
    __m512i rows[4];
    Transpose4(planes, rows);
    for (int i = 0; i < 4; ++i) out[i] = _mm512_permutexvar_epi8(kScatter4.Vector(), rows[i]);
  } else {
    // Rows of 16 words: planes 0 to 3 and 4 to 7; their halves belong together.
    __m512i low[4], high[4];
    Transpose4(planes, low);
    Transpose4(planes + 4, high);
    const __m512i first = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14);
    const __m512i second = _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15);
    for (int i = 0; i < 4; ++i) {
      out[2 * i] = _mm512_permutexvar_epi8(
          kScatter8.Vector(), _mm512_permutex2var_epi64(low[i], first, high[i]));
      out[2 * i + 1] = _mm512_permutexvar_epi8(
          kScatter8.Vector(), _mm512_permutex2var_epi64(low[i], second, high[i]));
    }
  }
}

template <int kShift>
inline __m512i ShiftRight8(__m512i v) {
  return _mm512_and_si512(_mm512_srli_epi16(v, kShift), _mm512_set1_epi8(0xff >> kShift));
}

template <int kShift>
inline __m512i ShiftLeft8(__m512i v) {
  return _mm512_and_si512(_mm512_slli_epi16(v, kShift),
                          _mm512_set1_epi8(static_cast<char>(0xff << kShift)));
}

inline __m512i And8(__m512i v, int mask) {
  return _mm512_and_si512(v, _mm512_set1_epi8(static_cast<char>(mask)));
}

// Words in memory to words whose bytes are the planes, as far as shifting words does it.
template <Layout layout>
inline __m512i Rotate(__m512i v) {
  if constexpr (layout == Layout::kBFloat16) return _mm512_shldi_epi16(v, v, 1);
  if constexpr (layout == Layout::kFloat32) {
    return _mm512_shldv_epi16(v, v, _mm512_set1_epi32(0x00010000));
  }
  return v;
}

template <Layout layout>
inline __m512i RotateBack(__m512i v) {
  if constexpr (layout == Layout::kBFloat16) return _mm512_shrdi_epi16(v, v, 1);
  if constexpr (layout == Layout::kFloat32) {
    return _mm512_shrdv_epi16(v, v, _mm512_set1_epi32(0x00010000));
  }
  return v;
}

// The top bytes of words to the planes that share them.
template <Layout layout>
inline void CutTop(__m512i* p) {
  if constexpr (layout == Layout::kFloat16) {
    const __m512i top = p[1];
    p[1] = _mm512_or_si512(And8(top, 3), And8(_mm512_srli_epi16(top, 5), 4));
    p[2] = And8(_mm512_srli_epi16(top, 2), 31);
  } else if constexpr (layout == Layout::kFloat64) {
    const __m512i low = p[6], top = p[7];
    const __m512i biased = _mm512_sub_epi8(top, _mm512_set1_epi8(896 >> 4));
    p[6] = _mm512_or_si512(And8(low, 15), And8(_mm512_srli_epi16(top, 3), 16));
    p[7] = And8(_mm512_srli_epi16(biased, 4), 7);
    p[8] = _mm512_or_si512(ShiftLeft8<4>(biased), ShiftRight8<4>(low));
  }
}

template <Layout layout>
inline void JoinTop(__m512i* p) {
  if constexpr (layout == Layout::kFloat16) {
    const __m512i sign_high = p[1];
    p[1] = _mm512_or_si512(
        _mm512_or_si512(And8(sign_high, 3), And8(_mm512_slli_epi16(sign_high, 5), 128)),
        And8(_mm512_slli_epi16(p[2], 2), 31 << 2));
  } else if constexpr (layout == Layout::kFloat64) {
    const __m512i sign_high = p[6];
    const __m512i biased = _mm512_or_si512(ShiftLeft8<4>(p[7]), ShiftRight8<4>(p[8]));
    const __m512i exponent = And8(_mm512_add_epi8(biased, _mm512_set1_epi8(896 >> 4)), 127);
    p[7] = _mm512_or_si512(exponent, And8(_mm512_slli_epi16(sign_high, 3), 128));
    p[6] = _mm512_or_si512(And8(sign_high, 15), ShiftLeft8<4>(p[8]));
  }
}

// Measured: with stores to the second-level cache in between, loads from there come late unless
// they are asked for this far ahead.
constexpr int64_t kAhead = 2048;

// The next 64 words of `from`, XORed with `other` if there is one, in planes.
template <Layout layout, bool kDelta>
inline void CutGroup(const uint8_t* from, const uint8_t* other, __m512i* cut) {
  constexpr int kBytes = Info(layout).word_bytes;
  __m512i words[kBytes];
  for (int b = 0; b < kBytes; ++b) {
    _mm_prefetch(reinterpret_cast<const char*>(from) + kAhead + 64 * b, _MM_HINT_T0);
    words[b] = LoadVector(from + 64 * b);
    if constexpr (kDelta) words[b] = _mm512_xor_si512(words[b], LoadVector(other + 64 * b));
    words[b] = Rotate<layout>(words[b]);
  }
  Deinterleave<kBytes>(words, cut);
  CutTop<layout>(cut);
}

// The inverse, for planes in registers, which are lost.
template <Layout layout, bool kDelta>
inline void JoinGroup(__m512i* cut, uint8_t* to, const uint8_t* other) {
  constexpr int kBytes = Info(layout).word_bytes;
  __m512i words[kBytes];
  JoinTop<layout>(cut);
  InterleavePlanes<kBytes>(cut, words);
  for (int b = 0; b < kBytes; ++b) {
    words[b] = RotateBack<layout>(words[b]);
    if constexpr (kDelta) words[b] = _mm512_xor_si512(words[b], LoadVector(other + 64 * b));
    StoreVector(to + 64 * b, words[b]);
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
  for (; i + 64 <= count; i += 64) {
    __m512i cut[kPlanes];
    CutGroup<layout, kDelta>(from, other, cut);
    for (int p = 0; p < kPlanes; ++p) StoreVector(out[p] + i, cut[p]);
    from += 64 * kBytes;
    if constexpr (kDelta) other += 64 * kBytes;
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
  for (; i + 64 <= count; i += 64) {
    __m512i cut[kPlanes];
    for (int p = 0; p < kPlanes; ++p) cut[p] = LoadOnce(in[p] + i);
    JoinGroup<layout, kDelta>(cut, to, other);
    to += 64 * kBytes;
    if constexpr (kDelta) other += 64 * kBytes;
  }
  return i;
}

template <Layout layout>
void Merge(void* dst, const void* ref, int64_t count, const uint8_t* const* planes) {
  const int64_t done = ref == nullptr ? MergeGroups<layout, false>(dst, ref, count, planes)
                                      : MergeGroups<layout, true>(dst, ref, count, planes);
  MergeFrom<layout>(done, dst, ref, count, planes);
}

struct Codes {
  __mmask64 low, high, escape;
};

template <int kCodeBits>
inline Codes Classify(__m512i v, const __m512i* symbols, __mmask64 valid) {
  const __mmask64 not_first = _mm512_mask_cmpneq_epi8_mask(valid, v, symbols[0]);
  if constexpr (kCodeBits == 1) return {not_first, 0, not_first};
  const __mmask64 low = _mm512_mask_cmpneq_epi8_mask(not_first, v, symbols[2]);
  const __mmask64 high = _mm512_mask_cmpneq_epi8_mask(not_first, v, symbols[1]);
  return {low, high, _kand_mask64(low, high)};
}

template <int kCodeBits>
int64_t EncodeLevel(const uint8_t* in, int64_t count, const uint8_t* symbols, uint8_t* bits,
                    uint8_t* escapes) {
  __m512i wanted[3];
  for (int s = 0; s < (kCodeBits == 2 ? 3 : 1); ++s) {
    wanted[s] = _mm512_set1_epi8(static_cast<char>(symbols[s]));
  }
  uint8_t* const first = escapes;
  int64_t i = 0;
#pragma GCC unroll 4
  for (; i + 64 <= count; i += 64) {
    const __m512i v = LoadVector(in + i);
    const Codes codes = Classify<kCodeBits>(v, wanted, ~__mmask64{0});
    Store<uint64_t>(bits, 0, codes.low);
    if (kCodeBits == 2) Store<uint64_t>(bits, 1, codes.high);
    bits += 8 * kCodeBits;
    StoreVector(escapes, _mm512_maskz_compress_epi8(codes.escape, v));
    escapes += _mm_popcnt_u64(codes.escape);
  }
  if (i < count) {
    const int64_t piece_bytes = PieceBytes(count - i);
    const __m512i v = LoadVector(in + i);
    const Codes codes = Classify<kCodeBits>(v, wanted, LowBits(count - i));
    Store<uint64_t>(bits, 0, codes.low);
    if (kCodeBits == 2) Store<uint64_t>(bits + piece_bytes, 0, codes.high);
    StoreVector(escapes, _mm512_maskz_compress_epi8(codes.escape, v));
    escapes += _mm_popcnt_u64(codes.escape);
  }
  return escapes - first;
}

template <int kCodeBits>
inline __m512i Expand(Codes codes, const __m512i* symbols, const uint8_t* escapes) {
  __m512i v = symbols[0];
  if constexpr (kCodeBits == 2) {
    v = _mm512_mask_mov_epi8(v, codes.low, symbols[1]);
    v = _mm512_mask_mov_epi8(v, codes.high, symbols[2]);
  }
  return _mm512_mask_expand_epi8(v, codes.escape, LoadOnce(escapes));
}

template <int kCodeBits>
int64_t DecodeLevel(const uint8_t* bits, int64_t count, const uint8_t* symbols,
                    const uint8_t* escapes, uint8_t* out) {
  __m512i wanted[3];
  for (int s = 0; s < (kCodeBits == 2 ? 3 : 1); ++s) {
    wanted[s] = _mm512_set1_epi8(static_cast<char>(symbols[s]));
  }
  const uint8_t* const first = escapes;
  int64_t i = 0;
#pragma GCC unroll 4
  for (; i + 64 <= count; i += 64) {
    const uint64_t low = Load<uint64_t>(bits);
    const uint64_t high = kCodeBits == 2 ? Load<uint64_t>(bits, 1) : low;
    bits += 8 * kCodeBits;
    const Codes codes = {low, high, low & high};
    StoreVector(out + i, Expand<kCodeBits>(codes, wanted, escapes));
    escapes += _mm_popcnt_u64(codes.escape);
  }
  if (i < count) {
    const uint64_t valid = LowBits(count - i);
    const uint64_t low = Load<uint64_t>(bits) & valid;
    const uint64_t high =
        kCodeBits == 2 ? Load<uint64_t>(bits + PieceBytes(count - i)) & valid : low;
    const Codes codes = {low, high, low & high};
    StoreVector(out + i, Expand<kCodeBits>(codes, wanted, escapes));
    escapes += _mm_popcnt_u64(codes.escape);
  }
  return escapes - first;
}

template <Layout layout, bool kDelta>
inline int64_t SplitEncodeGroups(const void* src, const void* ref, int64_t count,
                                 uint8_t* const* planes, const uint8_t* symbols, uint8_t* bits,
                                 uint8_t* escapes) {
  constexpr int kBytes = Info(layout).word_bytes, kLast = Info(layout).planes - 1;
  auto* from = static_cast<const uint8_t*>(src);
  auto* other = static_cast<const uint8_t*>(ref);
  uint8_t* out[kLast + 1];
  for (int p = 0; p < kLast; ++p) out[p] = planes[p];
  __m512i wanted[3];
  for (int s = 0; s < 3; ++s) wanted[s] = _mm512_set1_epi8(static_cast<char>(symbols[s]));
  uint8_t* const first = escapes;
  for (int64_t i = 0; i < count; i += 64) {
    __m512i cut[kLast + 1];
    CutGroup<layout, kDelta>(from, other, cut);
    for (int p = 0; p < kLast; ++p) StoreVector(out[p] + i, cut[p]);
    const Codes codes = Classify<2>(cut[kLast], wanted, ~__mmask64{0});
    Store<uint64_t>(bits, 0, codes.low);
    Store<uint64_t>(bits, 1, codes.high);
    bits += 16;
    StoreVector(escapes, _mm512_maskz_compress_epi8(codes.escape, cut[kLast]));
    escapes += _mm_popcnt_u64(codes.escape);
    from += 64 * kBytes;
    if constexpr (kDelta) other += 64 * kBytes;
  }
  return escapes - first;
}

template <Layout layout>
int64_t SplitEncode(const void* src, const void* ref, int64_t count, uint8_t* const* planes,
                    const uint8_t* symbols, uint8_t* bits, uint8_t* escapes) {
  return ref == nullptr
             ? SplitEncodeGroups<layout, false>(src, ref, count, planes, symbols, bits, escapes)
             : SplitEncodeGroups<layout, true>(src, ref, count, planes, symbols, bits, escapes);
}

template <Layout layout, bool kDelta>
inline int64_t DecodeMergeGroups(void* dst, const void* ref, int64_t count,
                                 const uint8_t* const* planes, const uint8_t* symbols,
                                 const uint8_t* bits, const uint8_t* escapes) {
  constexpr int kBytes = Info(layout).word_bytes, kLast = Info(layout).planes - 1;
  auto* to = static_cast<uint8_t*>(dst);
  auto* other = static_cast<const uint8_t*>(ref);
  const uint8_t* in[kLast + 1];
  for (int p = 0; p < kLast; ++p) in[p] = planes[p];
  __m512i wanted[3];
  for (int s = 0; s < 3; ++s) wanted[s] = _mm512_set1_epi8(static_cast<char>(symbols[s]));
  const uint8_t* const first = escapes;
  for (int64_t i = 0; i < count; i += 64) {
    const uint64_t low = Load<uint64_t>(bits), high = Load<uint64_t>(bits, 1);
    bits += 16;
    const Codes codes = {low, high, low & high};
    __m512i cut[kLast + 1];
    for (int p = 0; p < kLast; ++p) cut[p] = LoadOnce(in[p] + i);
    cut[kLast] = Expand<2>(codes, wanted, escapes);
    escapes += _mm_popcnt_u64(low & high);
    JoinGroup<layout, kDelta>(cut, to, other);
    to += 64 * kBytes;
    if constexpr (kDelta) other += 64 * kBytes;
  }
  return escapes - first;
}

template <Layout layout>
int64_t DecodeMerge(void* dst, const void* ref, int64_t count, const uint8_t* const* planes,
                    const uint8_t* symbols, const uint8_t* bits, const uint8_t* escapes) {
  return ref == nullptr
             ? DecodeMergeGroups<layout, false>(dst, ref, count, planes, symbols, bits, escapes)
             : DecodeMergeGroups<layout, true>(dst, ref, count, planes, symbols, bits, escapes);
}

void Pack(const uint8_t* in, int64_t count, int width, uint8_t* bits) {
  for (int64_t i = 0; i < count; i += 64) {
    const int64_t left = count - i;
    const __m512i v = LoadVector(in + i);
    const int64_t piece_bytes = left < 64 ? PieceBytes(left) : 8;
    for (int b = 0; b < width; ++b) {
      const __m512i bit = _mm512_set1_epi8(static_cast<char>(1 << b));
      Store<uint64_t>(bits, 0, _mm512_mask_test_epi8_mask(LowBits(left), v, bit));
      bits += piece_bytes;
    }
  }
}

void Unpack(const uint8_t* bits, int64_t count, int width, uint8_t* out) {
  for (int64_t i = 0; i < count; i += 64) {
    const int64_t left = count - i;
    const int64_t piece_bytes = left < 64 ? PieceBytes(left) : 8;
    __m512i v = _mm512_setzero_si512();
    for (int b = 0; b < width; ++b) {
      const __mmask64 piece = Load<uint64_t>(bits);
      v = _mm512_mask_add_epi8(v, piece, v, _mm512_set1_epi8(static_cast<char>(1 << b)));
      bits += piece_bytes;
    }
    StoreVector(out + i, v);
  }
}

}  // namespace

#define JAXCCOMP_LOSSLESS_KERNELS kAvx512Kernels
#define JAXCCOMP_LOSSLESS_NAME "avx512vbmi2"
#define JAXCCOMP_LOSSLESS_FUSED
#include "codec/lossless/table.inl"

}  // namespace jaxccomp::lossless
#endif
