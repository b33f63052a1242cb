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

using Vector = __m512i;
constexpr int kVectorBytes = 64;

inline Vector LoadVector(const void* at) { return _mm512_loadu_si512(at); }
inline void StoreVector(void* at, Vector v) { _mm512_storeu_si512(at, v); }

// A load that the compiler does not fold into its uses: twice from an unaligned address costs more
// than a register, and expanding out of memory is microcode on AMD.
inline Vector LoadOnce(const void* at) {
  Vector v = LoadVector(at);
  asm("" : "+v"(v));
  return v;
}

inline Vector Set8(int byte) { return _mm512_set1_epi8(static_cast<char>(byte)); }
inline Vector Or(Vector a, Vector b) { return _mm512_or_si512(a, b); }
inline Vector Xor(Vector a, Vector b) { return _mm512_xor_si512(a, b); }
inline Vector And8(Vector v, int mask) { return _mm512_and_si512(v, Set8(mask)); }
inline Vector Add8(Vector a, Vector b) { return _mm512_add_epi8(a, b); }
inline Vector Sub8(Vector a, Vector b) { return _mm512_sub_epi8(a, b); }
template <int kShift>
inline Vector ShiftLeft16(Vector v) { return _mm512_slli_epi16(v, kShift); }
template <int kShift>
inline Vector ShiftRight16(Vector v) { return _mm512_srli_epi16(v, kShift); }
inline Vector LowByte16(Vector v) { return _mm512_and_si512(v, _mm512_set1_epi16(255)); }
inline Vector Shuffle8(Vector v, const uint8_t* pattern) {
  const __m128i lane = _mm_load_si128(reinterpret_cast<const __m128i*>(pattern));
  return _mm512_shuffle_epi8(v, _mm512_broadcast_i32x4(lane));
}
inline Vector Pack16(Vector a, Vector b) { return _mm512_packus_epi16(a, b); }
inline Vector UnpackLow8(Vector a, Vector b) { return _mm512_unpacklo_epi8(a, b); }
inline Vector UnpackHigh8(Vector a, Vector b) { return _mm512_unpackhi_epi8(a, b); }
inline Vector UnpackLow16(Vector a, Vector b) { return _mm512_unpacklo_epi16(a, b); }
inline Vector UnpackHigh16(Vector a, Vector b) { return _mm512_unpackhi_epi16(a, b); }
inline Vector UnpackLow32(Vector a, Vector b) { return _mm512_unpacklo_epi32(a, b); }
inline Vector UnpackHigh32(Vector a, Vector b) { return _mm512_unpackhi_epi32(a, b); }
inline Vector UnpackLow64(Vector a, Vector b) { return _mm512_unpacklo_epi64(a, b); }
inline Vector UnpackHigh64(Vector a, Vector b) { return _mm512_unpackhi_epi64(a, b); }

// The top half word of bfloat16 and float32, rotated by one, has sign and exponent in place.
template <Layout layout>
inline Vector Rotate(Vector v) {
  if constexpr (layout == Layout::kBFloat16) return _mm512_shldi_epi16(v, v, 1);
  if constexpr (layout == Layout::kFloat32) {
    return _mm512_shldv_epi16(v, v, _mm512_set1_epi32(0x00010000));
  }
  return v;
}

template <Layout layout>
inline Vector RotateBack(Vector v) {
  if constexpr (layout == Layout::kBFloat16) return _mm512_shrdi_epi16(v, v, 1);
  if constexpr (layout == Layout::kFloat32) {
    return _mm512_shrdv_epi16(v, v, _mm512_set1_epi32(0x00010000));
  }
  return v;
}

inline void CutSign(Vector&, Vector&) {}   // Rotate has done it
inline void JoinSign(Vector&, Vector&) {}

}  // namespace
}  // namespace jaxccomp::lossless

#include "codec/lossless/planes.inl"

namespace jaxccomp::lossless {
namespace {

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

// A load that the compiler does not turn into one to a general register and a move: of those there
// can be only one per cycle.
inline __mmask64 LoadMask(const uint8_t* at) {
#if defined(__SANITIZE_ADDRESS__)
  return Load<uint64_t>(at);   // which the sanitizer sees
#endif
  __mmask64 mask;
  asm("kmovq %1, %0" : "=k"(mask) : "m"(*reinterpret_cast<const InMemory<uint64_t>::Type*>(at)));
  return mask;
}

template <int kCodeBits>
inline Codes LoadCodes(const uint8_t* bits) {
  const __mmask64 low = LoadMask(bits);
  if constexpr (kCodeBits == 1) return {low, low, low};
  const __mmask64 high = LoadMask(bits + 8);
  return {low, high, _kand_mask64(low, high)};
}

inline int64_t CountEscapes(Codes codes) {
  return _mm_popcnt_u64(_cvtmask64_u64(codes.low) & _cvtmask64_u64(codes.high));
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
    const Codes codes = LoadCodes<kCodeBits>(bits);
    bits += 8 * kCodeBits;
    StoreVector(out + i, Expand<kCodeBits>(codes, wanted, escapes));
    escapes += CountEscapes(codes);
  }
  if (i < count) {
    const uint64_t valid = LowBits(count - i);
    const uint64_t low = Load<uint64_t>(bits) & valid;
    const uint64_t high =
        kCodeBits == 2 ? Load<uint64_t>(bits + PieceBytes(count - i)) & valid : low;
    const Codes codes = {low, high, _kand_mask64(low, high)};
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
    Cut<layout, kDelta>(from, other, cut);
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
    const Codes codes = LoadCodes<2>(bits);
    bits += 16;
    __m512i cut[kLast + 1];
    for (int p = 0; p < kLast; ++p) cut[p] = LoadOnce(in[p] + i);
    cut[kLast] = Expand<2>(codes, wanted, escapes);
    escapes += CountEscapes(codes);
    Join<layout, kDelta>(cut, to, other);
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

inline int Max(const uint8_t* in, int64_t count) {
  __m512i most = _mm512_setzero_si512();
  for (int64_t i = 0; i < count; i += 64) {
    most = _mm512_max_epu8(most, _mm512_maskz_loadu_epi8(LowBits(count - i), in + i));
  }
  const __m256i half =
      _mm256_max_epu8(_mm512_castsi512_si256(most), _mm512_extracti64x4_epi64(most, 1));
  const __m128i quarter =
      _mm_max_epu8(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  // The least of 16-bit numbers is what there is an instruction for.
  const __m128i inverse = _mm_xor_si128(quarter, _mm_set1_epi8(-1));
  const __m128i least = _mm_minpos_epu16(_mm_min_epu8(
      _mm_and_si128(inverse, _mm_set1_epi16(255)), _mm_srli_epi16(inverse, 8)));
  return 255 - (_mm_extract_epi16(least, 0) & 255);
}

inline int CountOf(const uint8_t* in, int64_t count, int byte) {
  const __m512i wanted = Set8(byte);
  int64_t found = 0, i = 0;
  for (; i + 64 <= count; i += 64) {
    found += _mm_popcnt_u64(_mm512_cmpeq_epi8_mask(LoadVector(in + i), wanted));
  }
  if (i < count) {
    found += _mm_popcnt_u64(
        _mm512_mask_cmpeq_epi8_mask(LowBits(count - i), LoadVector(in + i), wanted));
  }
  return static_cast<int>(found);
}

// Exponents lie close together, below the greatest, but for 0: those bytes are counted one by one
// with compares. A table of counters is for what is left over.
void Histogram(const uint8_t* in, int64_t count, uint16_t* counts) {
  constexpr int kTries = 40;
  for (int b = 0; b < 256; b += 32) StoreVector(counts + b, _mm512_setzero_si512());
  const int zeros = CountOf(in, count, 0);
  counts[0] = static_cast<uint16_t>(zeros);
  int64_t left = count - zeros;
  const int most = Max(in, count);
  for (int byte = most; byte > 0 && byte > most - kTries && left > 0; --byte) {
    const int found = CountOf(in, count, byte);
    counts[byte] = static_cast<uint16_t>(found);
    left -= found;
  }
  if (left > 0) CountEach(in, count, counts);
}

// The width is known when compiling, so that the bits' vectors stay in registers.
template <int kWidth>
void PackWidth(const uint8_t* in, int64_t count, uint8_t* bits) {
  int64_t i = 0;
  for (; i + 64 <= count; i += 64) {
    const __m512i v = LoadVector(in + i);
    for (int b = 0; b < kWidth; ++b) {
      Store<uint64_t>(bits, b, _mm512_test_epi8_mask(v, Set8(1 << b)));
    }
    bits += 8 * kWidth;
  }
  if (i == count) return;
  const __m512i v = LoadVector(in + i);
  for (int b = 0; b < kWidth; ++b) {
    Store<uint64_t>(bits, 0, _mm512_mask_test_epi8_mask(LowBits(count - i), v, Set8(1 << b)));
    bits += PieceBytes(count - i);
  }
}

template <int kWidth>
void UnpackWidth(const uint8_t* bits, int64_t count, uint8_t* out) {
  for (int64_t i = 0; i < count; i += 64) {
    const int64_t piece_bytes = count - i < 64 ? PieceBytes(count - i) : 8;
    __m512i v = _mm512_setzero_si512();
    for (int b = 0; b < kWidth; ++b) {
      v = _mm512_mask_add_epi8(v, LoadMask(bits), v, Set8(1 << b));
      bits += piece_bytes;
    }
    StoreVector(out + i, v);
  }
}

void Pack(const uint8_t* in, int64_t count, int width, uint8_t* bits) {
  switch (width) {
    case 3: return PackWidth<3>(in, count, bits);
    case 5: return PackWidth<5>(in, count, bits);
    default: return PackWidth<8>(in, count, bits);
  }
}

void Unpack(const uint8_t* bits, int64_t count, int width, uint8_t* out) {
  switch (width) {
    case 3: return UnpackWidth<3>(bits, count, out);
    case 5: return UnpackWidth<5>(bits, count, out);
    default: return UnpackWidth<8>(bits, count, out);
  }
}

}  // namespace

#define JAXCCOMP_LOSSLESS_KERNELS kAvx512Kernels
#define JAXCCOMP_LOSSLESS_NAME "avx512vbmi2"
#define JAXCCOMP_LOSSLESS_FUSED
#include "codec/lossless/table.inl"

}  // namespace jaxccomp::lossless
#endif
