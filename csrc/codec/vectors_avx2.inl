// A part of vectors.inl. AVX2 cannot compress or expand: a shuffle from a table with a row per mask moves eight
// words.
namespace jaxccomp::vectors {
namespace {

template <typename V>
using Mask = Signed<V>;
struct Mask64 {
  Mask<U8> part[2];
};

template <typename V>
inline Mask<V> Equal(V a, V b) { return a == b; }
template <typename V>
inline Mask<V> Greater(V a, V b) { return Signed<V>(a) > Signed<V>(b); }
template <typename V>
inline Mask<V> Negative(V v) { return Signed<V>(v) < 0; }
template <typename V>
inline V Select(Mask<V> mask, V a, V b) {
  return mask ? a : b;
}
template <typename V>
inline V CountUp(V v, Mask<V> mask) { return v - V(mask); }
inline uint32_t BitsOf(Signed<U8> mask) {
  return static_cast<uint32_t>(_mm256_movemask_epi8(Native(mask)));
}
inline uint32_t BitsOf(Signed<U32> mask) {
  return static_cast<uint32_t>(_mm256_movemask_ps(__m256(mask)));
}

inline uint32_t BitsOf(Signed<U64> mask) {
  return static_cast<uint32_t>(_mm256_movemask_pd(__m256d(mask)));
}

template <typename Word, typename F>
inline uint64_t Bits64(F mask_of) {
  uint64_t bits = 0;
  for (unsigned k = 0; k < 2 * sizeof(Word); ++k) {
    if constexpr (sizeof(Word) == 2) {
      const Native packed = _mm256_packs_epi16(Native(mask_of(k)), Native(mask_of(k + 1)));
      ++k;
      bits |= uint64_t{BitsOf(Signed<U8>(_mm256_permute4x64_epi64(packed, 0xd8)))} << (16 * k - 16);
    } else {
      bits |= uint64_t{BitsOf(mask_of(k))} << (32 / sizeof(Word) * k);
    }
  }
  return bits;
}

inline U8 LoadOnce(const void* at) { return Load<U8>(at); }
inline Mask64 And(const Mask64& a, const Mask64& b) {
  return {{a.part[0] & b.part[0], a.part[1] & b.part[1]}};
}
inline uint64_t AndMasks(uint64_t a, uint64_t b) { return a & b; }
inline int CountBoth(uint64_t a, uint64_t b) { return std::popcount(a & b); }
inline uint64_t NotEqual(const Bytes& v, U8 byte, uint64_t among) {
  return among & ~Bits64<uint8_t>([&](int k) { return Equal(v.part[k], byte); });
}
inline uint64_t LoadMask(const uint8_t* at) { return Load<uint64_t>(at); }
// Part k of the mask of 64 bits.
inline Mask<U8> SpreadPart(uint64_t bits, int k) {
  const U8 spread = U8(_mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202,
                                          0x0303030303030303));
  const U8 place = U8(Fill<U64>(0x8040201008040201));
  const Native all = _mm256_set1_epi32(static_cast<int>(bits >> (32 * k)));
  return (U8(_mm256_shuffle_epi8(all, Native(spread))) & place) == place;
}

inline U8 TableOf(const uint8_t* of) {
  return U8(_mm256_broadcastsi128_si256(Load<__m128i>(of)));
}
inline U8 LookUp(U8 table, U8 indices) {
  return U8(_mm256_shuffle_epi8(Native(table), Native(indices)));
}
inline U64 SumsOfEight(U8 v) { return U64(_mm256_sad_epu8(Native(v), Native{})); }
inline uint64_t Sum(U64 v) {
  const __m128i half =
      _mm_add_epi64(_mm256_castsi256_si128(Native(v)), _mm256_extracti128_si256(Native(v), 1));
  return static_cast<uint64_t>(_mm_cvtsi128_si64(half) + _mm_extract_epi64(half, 1));
}

inline __m128i LoadEight(const uint8_t* at) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at));
}
inline U32 Widen(const uint8_t* at) { return U32(_mm256_cvtepu8_epi32(LoadEight(at))); }
template <typename Word, typename F>
inline void StoreNarrow(uint8_t* to, F vector) {
  for (int k = 0; k < 4; k += 2) {
    if constexpr (sizeof(Word) == 2) {
      const Native packed = _mm256_packus_epi16(Native(vector(k)), Native(vector(k + 1)));
      Store(to + 16 * k, _mm256_permute4x64_epi64(packed, 0xd8));
    } else {
      const Native low = _mm256_packus_epi32(Native(vector(2 * k)), Native(vector(2 * k + 1)));
      const Native high =
          _mm256_packus_epi32(Native(vector(2 * k + 2)), Native(vector(2 * k + 3)));
      Store(to + 16 * k,   // packus works within halves of 16 bytes
            _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high),
                                        _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
    }
  }
}

inline U32 MulHigh(U32 a, U32 b) {
  const Native even = _mm256_srli_epi64(_mm256_mul_epu32(Native(a), Native(b)), 32);
  const Native odd = _mm256_mul_epu32(Native(U64(a) >> 32), Native(U64(b) >> 32));
  return U32(_mm256_blend_epi32(even, odd, 0xaa));
}
inline U32 PrefixSums(U32 v) {
  v += U32(_mm256_slli_si256(Native(v), 4));
  v += U32(_mm256_slli_si256(Native(v), 8));
  const Native first = _mm256_permutevar8x32_epi32(Native(v), _mm256_set1_epi32(3));
  return v + U32(_mm256_blend_epi32(Native{}, first, 0xf0));
}
inline U32 Gather(const void* from, U32 offsets) {
  return U32(_mm256_i32gather_epi32(static_cast<const int*>(from), Native(offsets), 1));
}
template <typename V>
inline V UnpackLow8(V a, V b) { return V(_mm256_unpacklo_epi8(Native(a), Native(b))); }
template <typename V>
inline V UnpackLow16(V a, V b) { return V(_mm256_unpacklo_epi16(Native(a), Native(b))); }
template <typename V>
inline V UnpackLow32(V a, V b) { return V(_mm256_unpacklo_epi32(Native(a), Native(b))); }
template <typename V>
inline V UnpackLow64(V a, V b) { return V(_mm256_unpacklo_epi64(Native(a), Native(b))); }
template <typename V>
inline V UnpackHigh8(V a, V b) { return V(_mm256_unpackhi_epi8(Native(a), Native(b))); }
template <typename V>
inline V UnpackHigh16(V a, V b) { return V(_mm256_unpackhi_epi16(Native(a), Native(b))); }
template <typename V>
inline V UnpackHigh32(V a, V b) { return V(_mm256_unpackhi_epi32(Native(a), Native(b))); }
template <typename V>
inline V UnpackHigh64(V a, V b) { return V(_mm256_unpackhi_epi64(Native(a), Native(b))); }
inline U8 Pack16(U8 a, U8 b) { return U8(_mm256_packus_epi16(Native(a), Native(b))); }

// Shuffles by mask m of eight words: compress[m] moves the words with a set bit to the front, compress_to_end[m]
// to the end; expand[m] moves the first words to the set bits.
template <int kWordBytes>
struct Shuffles {
  using Rows = uint8_t[256][8 * kWordBytes];
  alignas(64) Rows compress, compress_to_end, expand;
};
template <int kWordBytes>
constexpr Shuffles<kWordBytes> MakeShuffles() {
  Shuffles<kWordBytes> made{};
  for (unsigned mask = 0; mask < 256; ++mask) {
    for (auto* rows : {&made.compress, &made.compress_to_end, &made.expand}) {
      for (uint8_t& byte : (*rows)[mask]) byte = 0x80;   // shuffles to 0
    }
    int next = 0, last = 8 - std::popcount(mask);
    for (int word = 0; word < 8; ++word) {
      if ((mask >> word & 1) == 0) continue;
      for (int b = 0; b < kWordBytes; ++b) {
        const int from = kWordBytes * word + b;
        made.compress[mask][kWordBytes * next + b] = static_cast<uint8_t>(from);
        made.compress_to_end[mask][kWordBytes * last + b] = static_cast<uint8_t>(from);
        made.expand[mask][from] = static_cast<uint8_t>(kWordBytes * next + b);
      }
      ++next;
      ++last;
    }
  }
  return made;
}
constexpr Shuffles<1> kOfBytes = MakeShuffles<1>();
constexpr Shuffles<2> kOfWords = MakeShuffles<2>();

inline uint8_t* Compress(const uint8_t* from, uint64_t bits, uint8_t* to) {
  if (bits == 0) return to;
  for (int b = 0; b < 64; b += 8) {
    const unsigned some = bits >> b & 255;
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to),
                     _mm_shuffle_epi8(LoadEight(from + b), LoadEight(kOfBytes.compress[some])));
    to += std::popcount(some);
  }
  return to;
}
inline Bytes Expand(uint64_t bits, const uint8_t* from) {
  __m128i eight[8];
  for (int k = 0; k < 8; ++k) {
    const unsigned some = bits >> (8 * k) & 255;
    eight[k] = _mm_shuffle_epi8(LoadEight(from), LoadEight(kOfBytes.expand[some]));
    from += std::popcount(some);
  }
  Bytes v;
  for (int k = 0; k < 8; k += 4) {
    v.part[k / 4] = U8(_mm256_set_m128i(_mm_unpacklo_epi64(eight[k + 2], eight[k + 3]),
                                        _mm_unpacklo_epi64(eight[k], eight[k + 1])));
  }
  return v;
}

inline Bytes ExpandInto(const Bytes& v, const Mask64& mask, uint64_t bits, const uint8_t* from) {
  const Bytes moved = Expand(bits, from);
  return {{Select(mask.part[0], moved.part[0], v.part[0]),
           Select(mask.part[1], moved.part[1], v.part[1])}};
}

using Words16 = VectorOf<uint16_t, 16>::Type;
using Words32 = U32;
template <typename V>
inline Mask<V> MaskOf(uint64_t bits) {   // of eight lanes
  const V each = {1, 2, 4, 8, 16, 32, 64, 128};
  return (Fill<V>(static_cast<Lane<V>>(bits)) & each) == each;
}
inline uint32_t BitsOf(Signed<Words16> mask) {
  return static_cast<uint32_t>(_mm_movemask_epi8(_mm_packs_epi16(__m128i(mask), __m128i{})));
}
inline Words16 Shuffle(Words16 v, const uint8_t (&row)[16]) {
  return Words16(_mm_shuffle_epi8(__m128i(v), Load<__m128i>(row)));
}
inline Words16 Compress(Words16 v, uint64_t bits) { return Shuffle(v, kOfWords.compress[bits & 255]); }
inline Words16 Expand(Words16 v, uint64_t bits) { return Shuffle(v, kOfWords.expand[bits & 255]); }
inline U32 Compress(U32 v, uint64_t bits) {
  return U32(_mm256_permutevar8x32_epi32(Native(v), Native(Widen(kOfBytes.compress[bits & 255]))));
}
inline U32 Expand(U32 v, uint64_t bits) {
  const Native moved =
      _mm256_permutevar8x32_epi32(Native(v), Native(Widen(kOfBytes.expand[bits & 255])));
  return U32(moved) & U32(MaskOf<U32>(bits));
}
inline void StoreWide(uint32_t* to, Words16 v) { Store(to, _mm256_cvtepu16_epi32(__m128i(v))); }
inline Words16 NarrowHalves(U32 v) {
  const Native low = Native(v & 0xffff);
  return Words16(_mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1)));
}
inline Words16 LoadWide(const uint32_t* from, Words16) { return NarrowHalves(Load<U32>(from)); }

inline std::byte* StoreHalvesBelow(std::byte* end, U32 v, uint32_t bits) {
  Store(end - 16, Shuffle(NarrowHalves(v), kOfWords.compress_to_end[bits]));
  return end - 2 * std::popcount(bits);
}
inline U32 TakeHalves(const std::byte** at, uint32_t bits) {
  const Words16 halves = Expand(Load<Words16>(*at), bits);
  *at += 2 * std::popcount(bits);
  return U32(_mm256_cvtepu16_epi32(__m128i(halves)));
}

struct Table16 {
  explicit Table16(const uint32_t* at) : low(Load<U32>(at)), high(Load<U32>(at + 8)) {}
  U32 At(U32 index) const {
    const Native i = Native(index);
    return Select(Greater(index, Fill<U32>(7)), U32(_mm256_permutevar8x32_epi32(Native(high), i)),
                  U32(_mm256_permutevar8x32_epi32(Native(low), i)));
  }
  U32 At(U32 index, Mask<U32> others, const Table16& other) const {
    return Select(others, other.At(index), At(index));
  }
  U32 low, high;
};

}  // namespace
}  // namespace jaxccomp::vectors
