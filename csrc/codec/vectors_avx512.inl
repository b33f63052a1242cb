// A part of vectors.inl.
namespace jaxccomp::vectors {
namespace {

// Keeps the compiler from folding the load into each use: two unaligned loads cost more than a register.
inline U8 LoadOnce(const void* at) {
  U8 v = Load<U8>(at);
  asm("" : "+v"(v));
  return v;
}

template <int kBytes>
struct MaskFor;
template <> struct MaskFor<1> { using Type = __mmask64; };
template <> struct MaskFor<2> { using Type = __mmask32; };
template <> struct MaskFor<4> { using Type = __mmask16; };
template <typename V>
using Mask = typename MaskFor<sizeof(Lane<V>)>::Type;
struct Mask64 {
  Mask<U8> part[1];
};

inline Mask<U8> Equal(U8 a, U8 b) { return _mm512_cmpeq_epi8_mask(Native(a), Native(b)); }
inline Mask<U16> Equal(U16 a, U16 b) { return _mm512_cmpeq_epi16_mask(Native(a), Native(b)); }
inline Mask<U32> Equal(U32 a, U32 b) { return _mm512_cmpeq_epi32_mask(Native(a), Native(b)); }
inline Mask<U8> Greater(U8 a, U8 b) { return _mm512_cmpgt_epu8_mask(Native(a), Native(b)); }
inline Mask<U32> Greater(U32 a, U32 b) { return _mm512_cmpgt_epu32_mask(Native(a), Native(b)); }
template <typename V>
inline Mask<V> MaskOf(uint64_t bits) { return static_cast<Mask<V>>(bits); }
inline Mask64 And(const Mask64& a, const Mask64& b) { return {{_kand_mask64(a.part[0], b.part[0])}}; }
// Operations on 64-byte masks that stay in mask registers.
inline uint64_t AndMasks(uint64_t a, uint64_t b) { return _kand_mask64(a, b); }
inline int CountBoth(uint64_t a, uint64_t b) {
  return std::popcount(_cvtmask64_u64(a) & _cvtmask64_u64(b));
}
inline uint64_t NotEqual(const Bytes& v, U8 byte, uint64_t among) {
  return _mm512_mask_cmpneq_epi8_mask(among, Native(v.part[0]), Native(byte));
}
// Loads directly to a mask register. The compiler would load a general register and move it: one move per cycle.
inline uint64_t LoadMask(const uint8_t* at) {
#if defined(__SANITIZE_ADDRESS__)
  return Load<uint64_t>(at);   // the sanitizer cannot check the asm
#endif
  typedef uint64_t Unaligned __attribute__((aligned(1), may_alias));
  __mmask64 mask;
  asm("kmovq %1, %0" : "=k"(mask) : "m"(*reinterpret_cast<const Unaligned*>(at)));
  return mask;
}
inline Mask<U8> SpreadPart(uint64_t bits, int) { return bits; }
inline uint32_t BitsOf(uint32_t mask) { return mask; }
inline U8 Select(Mask<U8> mask, U8 a, U8 b) {
  return U8(_mm512_mask_mov_epi8(Native(b), mask, Native(a)));
}
inline U16 Select(Mask<U16> mask, U16 a, U16 b) {
  return U16(_mm512_mask_mov_epi16(Native(b), mask, Native(a)));
}
inline U32 Select(Mask<U32> mask, U32 a, U32 b) {
  return U32(_mm512_mask_mov_epi32(Native(b), mask, Native(a)));
}
template <typename V>
inline V CountUp(V v, Mask<V> mask) { return Select(mask, v + 1, v); }

// A bit for each of 64 words, from the vectors' masks or sign bits.
template <typename Word, typename F>
inline uint64_t Bits64(F mask_of) {
  uint64_t bits = 0;
  for (unsigned k = 0; k < sizeof(Word); ++k) {
    bits |= static_cast<uint64_t>(mask_of(k)) << (64 / sizeof(Word) * k);
  }
  return bits;
}
inline Mask<U8> Negative(U8 v) { return _mm512_movepi8_mask(Native(v)); }
inline Mask<U16> Negative(U16 v) { return _mm512_movepi16_mask(Native(v)); }
inline Mask<U32> Negative(U32 v) { return _mm512_movepi32_mask(Native(v)); }

inline U8 TableOf(const uint8_t* of) {
  return U8(_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(of))));
}
inline U8 LookUp(U8 table, U8 indices) {
  return U8(_mm512_shuffle_epi8(Native(table), Native(indices)));
}
inline U64 SumsOfEight(U8 v) { return U64(_mm512_sad_epu8(Native(v), Native{})); }
inline uint64_t Sum(U64 v) { return static_cast<uint64_t>(_mm512_reduce_add_epi64(Native(v))); }

inline U32 Widen(const uint8_t* at) {
  return U32(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))));
}
template <typename Word, typename F>
inline void StoreNarrow(uint8_t* to, F vector) {
  for (int k = 0; k < static_cast<int>(sizeof(Word)); ++k) {
    if constexpr (sizeof(Word) == 2) {
      Store(to + 32 * k, _mm512_cvtepi16_epi8(Native(vector(k))));
    } else {
      Store(to + 16 * k, _mm512_cvtepi32_epi8(Native(vector(k))));
    }
  }
}

inline U32 MulHigh(U32 a, U32 b) {
  const Native even = _mm512_srli_epi64(_mm512_mul_epu32(Native(a), Native(b)), 32);
  const Native odd = _mm512_mul_epu32(Native(U64(a) >> 32), Native(U64(b) >> 32));
  return Select(0xaaaa, U32(odd), U32(even));
}
// Inclusive prefix sums of the lanes.
inline U32 PrefixSums(U32 v) {
  v += U32(_mm512_alignr_epi32(Native(v), Native{}, 15));
  v += U32(_mm512_alignr_epi32(Native(v), Native{}, 14));
  v += U32(_mm512_alignr_epi32(Native(v), Native{}, 12));
  return v + U32(_mm512_alignr_epi32(Native(v), Native{}, 8));
}
inline U32 Gather(const void* from, U32 offsets) {
  return U32(_mm512_i32gather_epi32(Native(offsets), from, 1));
}
template <typename V>
inline V UnpackLow8(V a, V b) { return V(_mm512_unpacklo_epi8(Native(a), Native(b))); }
template <typename V>
inline V UnpackLow16(V a, V b) { return V(_mm512_unpacklo_epi16(Native(a), Native(b))); }
template <typename V>
inline V UnpackLow32(V a, V b) { return V(_mm512_unpacklo_epi32(Native(a), Native(b))); }
template <typename V>
inline V UnpackLow64(V a, V b) { return V(_mm512_unpacklo_epi64(Native(a), Native(b))); }
template <typename V>
inline V UnpackHigh8(V a, V b) { return V(_mm512_unpackhi_epi8(Native(a), Native(b))); }
template <typename V>
inline V UnpackHigh16(V a, V b) { return V(_mm512_unpackhi_epi16(Native(a), Native(b))); }
template <typename V>
inline V UnpackHigh32(V a, V b) { return V(_mm512_unpackhi_epi32(Native(a), Native(b))); }
template <typename V>
inline V UnpackHigh64(V a, V b) { return V(_mm512_unpackhi_epi64(Native(a), Native(b))); }
inline U8 Pack16(U8 a, U8 b) { return U8(_mm512_packus_epi16(Native(a), Native(b))); }

// Compresses to a register, then stores: on Zen 4, compressing to memory and expanding from memory are microcode.
inline uint8_t* Compress(U8 v, uint64_t bits, uint8_t* to) {
  Store(to, _mm512_maskz_compress_epi8(bits, Native(v)));
  return to + std::popcount(bits);
}
inline uint8_t* Compress(const uint8_t* from, uint64_t bits, uint8_t* to) {
  return Compress(Load<U8>(from), bits, to);
}
inline Bytes Expand(uint64_t bits, const uint8_t* from) {
  return {{U8(_mm512_maskz_expand_epi8(bits, Native(LoadOnce(from))))}};
}
inline Bytes ExpandInto(const Bytes& v, const Mask64& mask, uint64_t, const uint8_t* from) {
  return {{U8(_mm512_mask_expand_epi8(Native(v.part[0]), mask.part[0], Native(LoadOnce(from))))}};
}
// Vectors of 16-bit or 32-bit words, and their Compress and Expand with a bit per word.
using Words16 = U16;
using Words32 = U32;
inline U16 Compress(U16 v, uint64_t bits) {
  return U16(_mm512_maskz_compress_epi16(MaskOf<U16>(bits), Native(v)));
}
inline U32 Compress(U32 v, uint64_t bits) {
  return U32(_mm512_maskz_compress_epi32(MaskOf<U32>(bits), Native(v)));
}
inline U16 Expand(U16 v, uint64_t bits) {
  return U16(_mm512_maskz_expand_epi16(MaskOf<U16>(bits), Native(v)));
}
inline U32 Expand(U32 v, uint64_t bits) {
  return U32(_mm512_maskz_expand_epi32(MaskOf<U32>(bits), Native(v)));
}
// Store 16-bit words as 32-bit words; load them back.
inline void StoreWide(uint32_t* to, U16 v) {
  Store(to, _mm512_cvtepu16_epi32(_mm512_castsi512_si256(Native(v))));
  Store(to + 16, _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(Native(v), 1)));
}
inline U16 LoadWide(const uint32_t* from, U16) {
  const __m256i low = _mm512_cvtepi32_epi16(Load<Native>(from));
  return U16(_mm512_inserti64x4(_mm512_castsi256_si512(low),
                                _mm512_cvtepi32_epi16(Load<Native>(from + 16)), 1));
}

// Stores the low halves of lanes with a set bit below `end`, in order; returns their start. Always writes 32 bytes
// below `end`: a masked store is many times slower on some processors.
inline std::byte* StoreHalvesBelow(std::byte* end, U32 v, uint32_t bits) {
  const int words = std::popcount(bits);
  const __m256i given = _mm512_cvtepi32_epi16(Native(Compress(v, bits)));
  const __m256i places = _mm256_add_epi16(
      _mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
      _mm256_set1_epi16(static_cast<int16_t>(words)));
  Store(end - 32, _mm256_permutexvar_epi16(places, given));
  return end - 2 * words;
}
// The inverse: loads the next halves to the lanes with a set bit.
inline U32 TakeHalves(const std::byte** at, uint32_t bits) {
  const U32 halves = U32(_mm512_cvtepu16_epi32(Load<__m256i>(*at)));
  *at += 2 * std::popcount(bits);
  return Expand(halves, bits);
}

// Look-up in a table of 16 numbers, or in one of two tables, selected per lane.
struct Table16 {
  explicit Table16(const uint32_t* at) : of(Load<U32>(at)) {}
  U32 At(U32 index) const { return U32(_mm512_permutexvar_epi32(Native(index), Native(of))); }
  U32 At(U32 index, Mask<U32> others, const Table16& other) const {
    return U32(_mm512_permutex2var_epi32(Native(of), Native(Select(others, index | 16, index)),
                                         Native(other.of)));
  }
  U32 of;
};

}  // namespace
}  // namespace jaxccomp::vectors
