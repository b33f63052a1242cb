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

using Vector = __m256i;
constexpr int kVectorBytes = 32;

inline Vector LoadVector(const void* at) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(at));
}
inline Vector LoadOnce(const void* at) { return LoadVector(at); }
inline void StoreVector(void* at, Vector v) { _mm256_storeu_si256(static_cast<__m256i*>(at), v); }
inline __m128i LoadEight(const void* at) {
  return _mm_loadl_epi64(static_cast<const __m128i*>(at));
}

inline Vector Set8(int byte) { return _mm256_set1_epi8(static_cast<char>(byte)); }
inline Vector Or(Vector a, Vector b) { return _mm256_or_si256(a, b); }
inline Vector Xor(Vector a, Vector b) { return _mm256_xor_si256(a, b); }
inline Vector And8(Vector v, int mask) { return _mm256_and_si256(v, Set8(mask)); }
inline Vector Add8(Vector a, Vector b) { return _mm256_add_epi8(a, b); }
inline Vector Sub8(Vector a, Vector b) { return _mm256_sub_epi8(a, b); }
template <int kShift>
inline Vector ShiftLeft16(Vector v) { return _mm256_slli_epi16(v, kShift); }
template <int kShift>
inline Vector ShiftRight16(Vector v) { return _mm256_srli_epi16(v, kShift); }
inline Vector LowByte16(Vector v) { return _mm256_and_si256(v, _mm256_set1_epi16(255)); }
inline Vector Shuffle8(Vector v, const uint8_t* pattern) {
  const __m128i lane = _mm_load_si128(reinterpret_cast<const __m128i*>(pattern));
  return _mm256_shuffle_epi8(v, _mm256_broadcastsi128_si256(lane));
}
inline Vector Pack16(Vector a, Vector b) { return _mm256_packus_epi16(a, b); }
inline Vector UnpackLow8(Vector a, Vector b) { return _mm256_unpacklo_epi8(a, b); }
inline Vector UnpackHigh8(Vector a, Vector b) { return _mm256_unpackhi_epi8(a, b); }
inline Vector UnpackLow16(Vector a, Vector b) { return _mm256_unpacklo_epi16(a, b); }
inline Vector UnpackHigh16(Vector a, Vector b) { return _mm256_unpackhi_epi16(a, b); }
inline Vector UnpackLow32(Vector a, Vector b) { return _mm256_unpacklo_epi32(a, b); }
inline Vector UnpackHigh32(Vector a, Vector b) { return _mm256_unpackhi_epi32(a, b); }
inline Vector UnpackLow64(Vector a, Vector b) { return _mm256_unpacklo_epi64(a, b); }
inline Vector UnpackHigh64(Vector a, Vector b) { return _mm256_unpackhi_epi64(a, b); }

// Bytes are cheaper to rotate than words here, and there are fewer of them.
template <Layout layout>
inline Vector Rotate(Vector v) { return v; }
template <Layout layout>
inline Vector RotateBack(Vector v) { return v; }

inline void CutSign(Vector& low, Vector& top) {
  const Vector zero = _mm256_setzero_si256();
  // A byte below 0 compares as -1, which is subtracted.
  const Vector sign = _mm256_cmpgt_epi8(zero, top), odd = _mm256_cmpgt_epi8(zero, low);
  low = Sub8(Add8(low, low), sign);
  top = Sub8(Add8(top, top), odd);
}

inline void JoinSign(Vector& low, Vector& top) {
  const Vector sign = And8(ShiftLeft16<7>(low), 0x80), odd = And8(ShiftLeft16<7>(top), 0x80);
  low = Or(And8(ShiftRight16<1>(low), 0x7f), odd);
  top = Or(And8(ShiftRight16<1>(top), 0x7f), sign);
}

}  // namespace
}  // namespace jaxccomp::lossless

#include "codec/lossless/planes.inl"

namespace jaxccomp::lossless {
namespace {

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

void Histogram(const uint8_t* in, int64_t count, uint16_t* counts) {
  CountEach(in, count, counts);
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
