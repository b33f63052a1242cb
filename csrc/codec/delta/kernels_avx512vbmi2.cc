// Kernels for x86 with AVX-512 F, BW, VL, DQ, VBMI and VBMI2.
#if defined(__x86_64__)
#include <immintrin.h>

#include <bit>

#include "codec/delta/generic.inl"
#include "codec/delta/lanes.inl"

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 warns of its own intrinsics, whose unused operand is left undefined on purpose.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace jaxccomp::delta {
namespace {

int64_t Map2(const std::byte* src, const std::byte* ref, int64_t count, uint64_t* map) {
  int64_t i = 0, changes = 0;
  for (; i + 64 <= count; i += 64) {
    const __m512i a0 = _mm512_loadu_si512(src + 2 * i), a1 = _mm512_loadu_si512(src + 2 * i + 64);
    const __m512i b0 = _mm512_loadu_si512(ref + 2 * i), b1 = _mm512_loadu_si512(ref + 2 * i + 64);
    map[i / 64] = static_cast<uint64_t>(_mm512_cmpneq_epu16_mask(a1, b1)) << 32 |
                  _mm512_cmpneq_epu16_mask(a0, b0);
    changes += std::popcount(map[i / 64]);
  }
  return changes + MapOf<uint16_t>(src + 2 * i, ref + 2 * i, count - i, map + i / 64);
}

int64_t Map4(const std::byte* src, const std::byte* ref, int64_t count, uint64_t* map) {
  int64_t i = 0, changes = 0;
  for (; i + 64 <= count; i += 64) {
    uint64_t bits = 0;
    for (int k = 0; k < 4; ++k) {
      const __m512i a = _mm512_loadu_si512(src + 4 * i + 64 * k);
      const __m512i b = _mm512_loadu_si512(ref + 4 * i + 64 * k);
      bits |= static_cast<uint64_t>(_mm512_cmpneq_epu32_mask(a, b)) << (16 * k);
    }
    map[i / 64] = bits;
    changes += std::popcount(bits);
  }
  return changes + MapOf<uint32_t>(src + 4 * i, ref + 4 * i, count - i, map + i / 64);
}

template <typename F>
void Classes2(const std::byte* ref, int64_t count, int base, uint8_t* classes) {
  const __m512i exponents = _mm512_set1_epi16((F::kRest >> F::kMantissaBits));
  const __m512i bases = _mm512_set1_epi16(static_cast<int16_t>(base));
  const __m512i most = _mm512_set1_epi16(kClasses - 1);
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const __m512i words = _mm512_loadu_si512(ref + 2 * i);
    const __m512i exponent =
        _mm512_and_si512(_mm512_srli_epi16(words, F::kMantissaBits), exponents);
    const __m512i below = _mm512_min_epu16(_mm512_subs_epu16(bases, exponent), most);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(classes + i), _mm512_cvtepi16_epi8(below));
  }
  ClassesOf<F>(ref + 2 * i, count - i, base, classes + i);
}

void Classes4(const std::byte* ref, int64_t count, int base, uint8_t* classes) {
  const __m512i exponents = _mm512_set1_epi32(255), bases = _mm512_set1_epi32(base);
  const __m512i none = _mm512_setzero_si512(), most = _mm512_set1_epi32(kClasses - 1);
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m512i words = _mm512_loadu_si512(ref + 4 * i);
    const __m512i exponent =
        _mm512_and_si512(_mm512_srli_epi32(words, Float32Word::kMantissaBits), exponents);
    const __m512i below = _mm512_min_epi32(
        _mm512_max_epi32(_mm512_sub_epi32(bases, exponent), none), most);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(classes + i), _mm512_cvtepi32_epi8(below));
  }
  ClassesOf<Float32Word>(ref + 4 * i, count - i, base, classes + i);
}

void Sums(const uint8_t* classes, int64_t count, const uint16_t* weights, uint32_t* sums) {
  alignas(16) uint8_t low[16], high[16];
  for (int c = 0; c < 16; ++c) {
    low[c] = static_cast<uint8_t>(weights[c]);
    high[c] = static_cast<uint8_t>(weights[c] >> 8);
  }
  const __m512i lows = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<__m128i*>(low)));
  const __m512i highs = _mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<__m128i*>(high)));
  const __m512i zero = _mm512_setzero_si512();
  int64_t i = 0;
  for (; i + 64 <= count; i += 64) {
    const __m512i c = _mm512_loadu_si512(classes + i);
    const __m512i l = _mm512_sad_epu8(_mm512_shuffle_epi8(lows, c), zero);
    const __m512i h = _mm512_sad_epu8(_mm512_shuffle_epi8(highs, c), zero);
    sums[i / 64] = static_cast<uint32_t>(
        _mm512_reduce_add_epi64(_mm512_add_epi64(l, _mm512_slli_epi64(h, 8))));
  }
  SumsOf(classes + i, count - i, weights, sums + i / 64);
}

uint64_t Tail(int64_t count) { return (uint64_t{1} << (count % 64)) - 1; }

void Count(const uint8_t* classes, int64_t count, uint32_t* counts) {
  uint64_t sums[kClasses] = {};
  for (int64_t i = 0; i < count; i += 64) {
    const uint64_t lanes = count - i < 64 ? Tail(count) : ~uint64_t{0};
    const __m512i v = _mm512_loadu_si512(classes + i);
    for (int c = 0; c < kClasses; ++c) {
      sums[c] += static_cast<uint64_t>(std::popcount(
          _mm512_mask_cmpeq_epi8_mask(lanes, v, _mm512_set1_epi8(static_cast<char>(c)))));
    }
  }
  for (int c = 0; c < kClasses; ++c) counts[c] = static_cast<uint32_t>(sums[c]);
}

void Symbols(const uint32_t* lengths, int64_t count, uint8_t* symbols) {
  // As a float, rounded down, a length has its highest bit in the exponent and the next one behind it.
  const __m512i least = _mm512_set1_epi32(255), none = _mm512_setzero_si512();
  for (int64_t i = 0; i < count; i += 16) {
    const __m512 value = _mm512_cvt_roundepu32_ps(_mm512_loadu_si512(lengths + i),
                                                  _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
    const __m512i code = _mm512_srli_epi32(_mm512_castps_si512(value), 22);
    const __m512i symbol = _mm512_max_epi32(_mm512_sub_epi32(code, least), none);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(symbols + i), _mm512_cvtepi32_epi8(symbol));
  }
}

void Above(const uint8_t* numbers, int64_t count, int than, uint64_t* bits) {
  const __m512i least = _mm512_set1_epi8(static_cast<char>(than));
  for (int64_t i = 0; i < count; i += 64) {
    const uint64_t lanes = count - i < 64 ? Tail(count) : ~uint64_t{0};
    bits[i / 64] = _mm512_mask_cmpgt_epu8_mask(lanes, _mm512_loadu_si512(numbers + i), least);
  }
}

int64_t Keep(const uint64_t* bits, const uint8_t* from, int64_t count, uint8_t* to) {
  int64_t n = 0;
  for (int64_t i = 0; i < count; i += 64) {
    const uint64_t word = count - i < 64 ? bits[i / 64] & Tail(count) : bits[i / 64];
    _mm512_storeu_si512(to + n, _mm512_maskz_compress_epi8(word, _mm512_loadu_si512(from + i)));
    n += std::popcount(word);
  }
  return n;
}

void Climb(const uint64_t* bits, const uint8_t* from, int64_t count, uint8_t* to) {
  const __m512i one = _mm512_set1_epi8(1);
  for (int64_t i = 0; i < count; i += 64) {
    const uint64_t word = bits[i / 64];
    const __m512i next = _mm512_maskz_expand_epi8(word, _mm512_loadu_si512(from));
    _mm512_storeu_si512(to + i, _mm512_mask_add_epi8(next, word, next, one));
    from += std::popcount(word);
  }
}

void Split(const uint8_t* symbols, const uint8_t* classes, int64_t count, const uint8_t* pivots,
           uint8_t* differences, uint64_t* bits) {
  const __m512i table =
      _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(pivots)));
  for (int64_t i = 0; i < count; i += 64) {
    const uint64_t lanes = count - i < 64 ? Tail(count) : ~uint64_t{0};
    const __m512i pivot = _mm512_shuffle_epi8(table, _mm512_loadu_si512(classes + i));
    const __m512i difference = _mm512_sub_epi8(_mm512_loadu_si512(symbols + i), pivot);
    _mm512_storeu_si512(differences + i, difference);
    bits[i / 64] = lanes & ~_mm512_movepi8_mask(difference);
  }
}

void Join(const uint64_t* bits, const uint8_t* ups, const uint8_t* downs, const uint8_t* classes,
          const uint8_t* pivots, int64_t count, uint8_t* symbols) {
  const __m512i table =
      _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(pivots)));
  const __m512i all = _mm512_set1_epi8(-1);
  for (int64_t i = 0; i < count; i += 64) {
    const uint64_t word = bits[i / 64];
    const __m512i down = _mm512_xor_si512(
        _mm512_maskz_expand_epi8(~word, _mm512_loadu_si512(downs)), all);
    const __m512i sides = _mm512_mask_expand_epi8(down, word, _mm512_loadu_si512(ups));
    const __m512i pivot = _mm512_shuffle_epi8(table, _mm512_loadu_si512(classes + i));
    _mm512_storeu_si512(symbols + i, _mm512_add_epi8(pivot, sides));
    const int up = std::popcount(word);
    ups += up;
    downs += 64 - up;
  }
}

// How many bits follow 16 symbols.
__m512i LowBits(__m512i symbols) {
  const __m512i one = _mm512_set1_epi32(1);
  const __m512i high = _mm512_srli_epi32(_mm512_add_epi32(symbols, one), 1);
  return _mm512_sub_epi32(_mm512_max_epi32(high, one), one);
}
__m512i SymbolsAt(const uint8_t* symbols) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(symbols)));
}
// Four of them fit a word: as many as BitWriter::Put takes.
constexpr int kFewLowBits = 14;

void PutLow(const uint32_t* lengths, const uint8_t* symbols, int64_t count, BitWriter* to) {
  const __m512i few = _mm512_set1_epi32(kFewLowBits), one = _mm512_set1_epi32(1);
  const __m512i half = _mm512_set1_epi64(0xffffffff);
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m512i bits = LowBits(SymbolsAt(symbols + i));
    if (_mm512_cmpgt_epi32_mask(bits, few) != 0) {
      PutLowOf(lengths + i, symbols + i, 16, to);
      continue;
    }
    const __m512i mask = _mm512_sub_epi32(_mm512_sllv_epi32(one, bits), one);
    const __m512i low = _mm512_and_si512(_mm512_loadu_si512(lengths + i), mask);
    // Two to a word of 64 bits, then two of these.
    const __m512i first_bits = _mm512_and_si512(bits, half);
    const __m512i pairs = _mm512_or_si512(
        _mm512_and_si512(low, half), _mm512_sllv_epi64(_mm512_srli_epi64(low, 32), first_bits));
    const __m512i pair_bits = _mm512_add_epi64(first_bits, _mm512_srli_epi64(bits, 32));
    const __m512i fours = _mm512_or_si512(
        pairs, _mm512_sllv_epi64(_mm512_unpackhi_epi64(pairs, pairs), pair_bits));
    const __m512i four_bits =
        _mm512_add_epi64(pair_bits, _mm512_unpackhi_epi64(pair_bits, pair_bits));
    alignas(64) uint64_t words[8], counts[8];
    _mm512_store_si512(words, fours);
    _mm512_store_si512(counts, four_bits);
    for (int k = 0; k < 8; k += 2) to->Put(words[k], static_cast<int>(counts[k]));
  }
  PutLowOf(lengths + i, symbols + i, count - i, to);
}

void TakeLow(const uint8_t* symbols, int64_t count, BitReader* from, uint32_t* lengths) {
  const __m512i few = _mm512_set1_epi32(kFewLowBits), one = _mm512_set1_epi32(1);
  const __m512i none = _mm512_setzero_si512(), seven = _mm512_set1_epi32(7);
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m512i symbol = SymbolsAt(symbols + i), bits = LowBits(symbol);
    // The bits up to each, in steps of 1, 2, 4 and 8.
    __m512i upto = bits;
    upto = _mm512_add_epi32(upto, _mm512_alignr_epi32(upto, none, 15));
    upto = _mm512_add_epi32(upto, _mm512_alignr_epi32(upto, none, 14));
    upto = _mm512_add_epi32(upto, _mm512_alignr_epi32(upto, none, 12));
    upto = _mm512_add_epi32(upto, _mm512_alignr_epi32(upto, none, 8));
    const int all = _mm_extract_epi32(_mm512_extracti32x4_epi32(upto, 3), 3);
    if (_mm512_cmpgt_epi32_mask(bits, few) != 0 || !from->Has(all)) {
      TakeLowOf(symbols + i, 16, from, lengths + i);
      continue;
    }
    const __m512i at = _mm512_add_epi32(_mm512_sub_epi32(upto, bits),
                                        _mm512_set1_epi32(from->skipped()));
    const __m512i words = _mm512_i32gather_epi32(_mm512_srli_epi32(at, 3), from->at(), 1);
    const __m512i mask = _mm512_sub_epi32(_mm512_sllv_epi32(one, bits), one);
    const __m512i low =
        _mm512_and_si512(_mm512_srlv_epi32(words, _mm512_and_si512(at, seven)), mask);
    // The highest bit and the one below; nothing is below 1.
    const __mmask16 odd = _mm512_test_epi32_mask(symbol, one);
    const __m512i high = _mm512_mask_mov_epi32(_mm512_set1_epi32(3), odd, _mm512_set1_epi32(2));
    const __m512i least = _mm512_mask_mov_epi32(_mm512_sllv_epi32(high, bits),
                                                _mm512_testn_epi32_mask(symbol, symbol), one);
    _mm512_storeu_si512(lengths + i, _mm512_add_epi32(least, low));
    from->Skip(all);
  }
  TakeLowOf(symbols + i, count - i, from, lengths + i);
}

// A vector of words of 16 bits, and of 32.
struct Words16 {
  using Mask = __mmask32;
  static constexpr int kCount = 32, kBytes = 2;
  static __m512i Sign(__m512i v) { return _mm512_srai_epi16(v, 15); }
  static __m512i Rest(__m512i sign) { return _mm512_srli_epi16(sign, 1); }
  static __m512i Add(__m512i a, __m512i b) { return _mm512_add_epi16(a, b); }
  static __m512i Sub(__m512i a, __m512i b) { return _mm512_sub_epi16(a, b); }
  static __m512i Abs(__m512i v) { return _mm512_abs_epi16(v); }
  static Mask Negative(__m512i v) { return _mm512_movepi16_mask(v); }
  static __m512i Compress(Mask some, __m512i v) { return _mm512_maskz_compress_epi16(some, v); }
  static __m512i Expand(Mask some, __m512i v) { return _mm512_maskz_expand_epi16(some, v); }
  static __m512i Negate(Mask some, __m512i v) {
    return _mm512_mask_sub_epi16(v, some, _mm512_setzero_si512(), v);
  }
  static void StoreLengths(__m512i v, uint32_t* to) {
    _mm512_storeu_si512(to, _mm512_cvtepu16_epi32(_mm512_castsi512_si256(v)));
    _mm512_storeu_si512(to + 16, _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(v, 1)));
  }
  static __m512i LoadLengths(const uint32_t* from) {
    const __m256i low = _mm512_cvtepi32_epi16(_mm512_loadu_si512(from));
    const __m256i high = _mm512_cvtepi32_epi16(_mm512_loadu_si512(from + 16));
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  }
};

struct Words32 {
  using Mask = __mmask16;
  static constexpr int kCount = 16, kBytes = 4;
  static __m512i Sign(__m512i v) { return _mm512_srai_epi32(v, 31); }
  static __m512i Rest(__m512i sign) { return _mm512_srli_epi32(sign, 1); }
  static __m512i Add(__m512i a, __m512i b) { return _mm512_add_epi32(a, b); }
  static __m512i Sub(__m512i a, __m512i b) { return _mm512_sub_epi32(a, b); }
  static __m512i Abs(__m512i v) { return _mm512_abs_epi32(v); }
  static Mask Negative(__m512i v) { return _mm512_movepi32_mask(v); }
  static __m512i Compress(Mask some, __m512i v) { return _mm512_maskz_compress_epi32(some, v); }
  static __m512i Expand(Mask some, __m512i v) { return _mm512_maskz_expand_epi32(some, v); }
  static __m512i Negate(Mask some, __m512i v) {
    return _mm512_mask_sub_epi32(v, some, _mm512_setzero_si512(), v);
  }
  static void StoreLengths(__m512i v, uint32_t* to) { _mm512_storeu_si512(to, v); }
  static __m512i LoadLengths(const uint32_t* from) { return _mm512_loadu_si512(from); }
};

template <typename V>
__m512i Ordered(__m512i v) {
  return _mm512_xor_si512(v, V::Rest(V::Sign(v)));
}
// -v where the sign is all ones.
template <typename V>
__m512i Signed(__m512i v, __m512i sign) {
  return V::Sub(_mm512_xor_si512(v, sign), sign);
}

template <typename V, typename F>
void StepsBy(const std::byte* src, const std::byte* ref, const uint64_t* map, int64_t count,
             const Changes& changes) {
  int64_t n = 0, i = 0;
  changes.away[0] = 0;
  for (; i + 64 <= count; i += 64) {
    const uint64_t word = map[i / 64];
    if (word == 0) continue;
    for (int first = 0; first < 64; first += V::kCount) {
      const auto some = static_cast<typename V::Mask>(word >> first);
      const __m512i a = _mm512_loadu_si512(src + V::kBytes * (i + first));
      const __m512i b = _mm512_loadu_si512(ref + V::kBytes * (i + first));
      const __m512i difference = V::Sub(Ordered<V>(a), Ordered<V>(b));
      const __m512i step = V::Compress(some, Signed<V>(difference, V::Sign(b)));
      const int found = __builtin_popcount(some);
      const uint64_t towards = V::Negative(step);
      Append(changes.away, n, ~towards & ((uint64_t{1} << found) - 1));
      V::StoreLengths(V::Abs(step), changes.lengths + n);
      n += found;
    }
  }
  StepsFrom<F>(i, n, src, ref, map, count, changes);
}

template <typename V, typename F>
void AdvanceBy(std::byte* values, const uint64_t* map, int64_t count, const Changes& changes) {
  int64_t n = 0, i = 0;
  for (; i + 64 <= count; i += 64) {
    const uint64_t word = map[i / 64];
    if (word == 0) continue;
    for (int first = 0; first < 64; first += V::kCount) {
      const auto some = static_cast<typename V::Mask>(word >> first);
      const auto towards = static_cast<typename V::Mask>(~BitsAt(changes.away, n));
      const __m512i length = V::LoadLengths(changes.lengths + n);
      const __m512i step = V::Expand(some, V::Negate(towards, length));
      std::byte* const at = values + V::kBytes * (i + first);
      const __m512i ref = _mm512_loadu_si512(at);
      const __m512i next = V::Add(Ordered<V>(ref), Signed<V>(step, V::Sign(ref)));
      _mm512_storeu_si512(at, Ordered<V>(next));
      n += __builtin_popcount(some);
    }
  }
  AdvanceFrom<F>(i, n, values, map, count, changes);
}

struct Lanes16 {
  static constexpr int kWidth = 16;
  struct Tables {
    explicit Tables(const LaneModel& model)
        : size_zero(_mm512_loadu_si512(model.zero)),
          size_one(_mm512_sub_epi32(_mm512_set1_epi32(kLaneScale), size_zero)),
          reciprocal_zero(_mm512_loadu_si512(model.reciprocal)),
          reciprocal_one(_mm512_loadu_si512(model.reciprocal + 16)),
          shift_zero(_mm512_loadu_si512(model.shift)),
          shift_one(_mm512_loadu_si512(model.shift + 16)) {}
    __m512i size_zero, size_one, reciprocal_zero, reciprocal_one, shift_zero, shift_one;
  };
  struct Zero {
    explicit Zero(const uint32_t* zero) : of(_mm512_loadu_si512(zero)) {}
    __m512i of;
  };

  void Load(const uint32_t* states) { state = _mm512_loadu_si512(states); }
  void Store(uint32_t* states) const { _mm512_storeu_si512(states, state); }

  static __m512i ClassesAt(const uint8_t* classes) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(classes)));
  }
  // x / f by reciprocals.
  static __m512i Divide(__m512i x, __m512i reciprocal, __m512i shift) {
    const __m512i even = _mm512_srli_epi64(_mm512_mul_epu32(x, reciprocal), 32);
    const __m512i odd =
        _mm512_mul_epu32(_mm512_srli_epi64(x, 32), _mm512_srli_epi64(reciprocal, 32));
    return _mm512_srlv_epi32(_mm512_mask_mov_epi32(even, 0xaaaa, odd), shift);
  }

  template <bool kAll>
  std::byte* Encode(uint32_t one_bits, const uint8_t* classes, const Tables& t, uint32_t lane_bits,
                    std::byte* end) {
    const auto ones = static_cast<__mmask16>(one_bits), lanes = static_cast<__mmask16>(lane_bits);
    const __m512i c = ClassesAt(classes);
    const __m512i of = _mm512_mask_or_epi32(c, ones, c, _mm512_set1_epi32(kClasses));
    const __m512i size = _mm512_permutex2var_epi32(t.size_zero, of, t.size_one);
    const __mmask16 full =
        _mm512_mask_cmpge_epu32_mask(lanes, state, _mm512_slli_epi32(size, 16));
    const int words = __builtin_popcount(full);
    // In the order of the lanes, at the end of 16 words: a store with a mask takes many times as long on
    // some processors.
    const __m256i given = _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(full, state));
    const __m256i places = _mm256_add_epi16(
        _mm256_setr_epi16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
        _mm256_set1_epi16(static_cast<int16_t>(words)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(end - 32),
                        _mm256_permutexvar_epi16(places, given));
    const __m512i x = _mm512_mask_srli_epi32(state, full, state, 16);
    const __m512i reciprocal = _mm512_permutex2var_epi32(t.reciprocal_zero, of, t.reciprocal_one);
    const __m512i shift = _mm512_permutex2var_epi32(t.shift_zero, of, t.shift_one);
    const __m512i quotient = Divide(x, reciprocal, shift);
    // x + quotient * (all - size); a 1 comes behind the other part, which is as great.
    const __m512i other = _mm512_sub_epi32(_mm512_set1_epi32(kLaneScale), size);
    const __m512i times = _mm512_mask_add_epi32(quotient, ones, quotient, _mm512_set1_epi32(1));
    const __m512i next = _mm512_add_epi32(x, _mm512_mullo_epi32(times, other));
    state = kAll ? next : _mm512_mask_mov_epi32(state, lanes, next);
    return end - 2 * words;
  }

  template <bool kAll>
  uint32_t Decode(const uint8_t* classes, const Zero& zero_of, uint32_t lane_bits,
                  const std::byte** at) {
    const auto lanes = static_cast<__mmask16>(lane_bits);
    const __m512i all = _mm512_set1_epi32(kLaneScale);
    const __m512i zero = _mm512_permutexvar_epi32(ClassesAt(classes), zero_of.of);
    const __m512i slot = _mm512_and_si512(state, _mm512_set1_epi32(kLaneScale - 1));
    const __mmask16 ones = _mm512_mask_cmpge_epu32_mask(lanes, slot, zero);
    const __m512i size = _mm512_mask_sub_epi32(zero, ones, all, zero);
    __m512i next = _mm512_add_epi32(
        _mm512_mullo_epi32(size, _mm512_srli_epi32(state, kLaneBits)),
        _mm512_mask_sub_epi32(slot, ones, slot, zero));
    const __mmask16 empty =
        _mm512_mask_cmplt_epu32_mask(lanes, next, _mm512_set1_epi32(kLeastLaneState));
    const __m512i words =
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(*at)));
    next = _mm512_mask_or_epi32(next, empty, _mm512_slli_epi32(next, 16),
                                _mm512_maskz_expand_epi32(empty, words));
    *at += 2 * __builtin_popcount(empty);
    state = kAll ? next : _mm512_mask_mov_epi32(state, lanes, next);
    return ones;
  }

  __m512i state;
};

}  // namespace

extern const Kernels kAvx512Kernels;
const Kernels kAvx512Kernels = {
    .name = "avx512vbmi2",
    .map2 = Map2,
    .map4 = Map4,
    .bfloat16_classes = Classes2<BFloat16Word>,
    .float16_classes = Classes2<Float16Word>,
    .float32_classes = Classes4,
    .steps2 = StepsBy<Words16, BFloat16Word>,
    .steps4 = StepsBy<Words32, Float32Word>,
    .advance2 = AdvanceBy<Words16, BFloat16Word>,
    .advance4 = AdvanceBy<Words32, Float32Word>,
    .sums = Sums,
    .count = Count,
    .symbols = Symbols,
    .above = Above,
    .keep = Keep,
    .climb = Climb,
    .split = Split,
    .join = Join,
    .put_low = PutLow,
    .take_low = TakeLow,
    .encode_few = EncodeLanesBy<Lanes16, kFewLanes>,
    .encode_most = EncodeLanesBy<Lanes16, kMostLanes>,
    .decode_few = DecodeLanesBy<Lanes16, kFewLanes>,
    .decode_most = DecodeLanesBy<Lanes16, kMostLanes>};

}  // namespace jaxccomp::delta
#endif
