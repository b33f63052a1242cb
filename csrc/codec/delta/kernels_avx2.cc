// Kernels for x86 with AVX2.
#if defined(__x86_64__)
#include <immintrin.h>

#include <bit>

#include "codec/delta/generic.inl"
#include "codec/delta/lanes.inl"

namespace jaxccomp::delta {
namespace {

__m256i Load(const void* at) { return _mm256_loadu_si256(static_cast<const __m256i*>(at)); }
void Store(void* at, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(at), v); }

int64_t Map2(const std::byte* src, const std::byte* ref, int64_t count, uint64_t* map) {
  int64_t i = 0, changes = 0;
  const auto differ = [&](int64_t at) {   // of 32 values
    const __m256i low = _mm256_cmpeq_epi16(Load(src + 2 * at), Load(ref + 2 * at));
    const __m256i high = _mm256_cmpeq_epi16(Load(src + 2 * at + 32), Load(ref + 2 * at + 32));
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xd8);
    return static_cast<uint64_t>(~static_cast<uint32_t>(_mm256_movemask_epi8(packed)));
  };
  for (; i + 64 <= count; i += 64) {
    map[i / 64] = differ(i + 32) << 32 | differ(i);
    changes += std::popcount(map[i / 64]);
  }
  return changes + MapOf<uint16_t>(src + 2 * i, ref + 2 * i, count - i, map + i / 64);
}

int64_t Map4(const std::byte* src, const std::byte* ref, int64_t count, uint64_t* map) {
  int64_t i = 0, changes = 0;
  for (; i + 64 <= count; i += 64) {
    uint64_t same = 0;
    for (int k = 0; k < 8; ++k) {
      const __m256i equal =
          _mm256_cmpeq_epi32(Load(src + 4 * i + 32 * k), Load(ref + 4 * i + 32 * k));
      same |= static_cast<uint64_t>(_mm256_movemask_ps(_mm256_castsi256_ps(equal))) << (8 * k);
    }
    map[i / 64] = ~same;
    changes += std::popcount(~same);
  }
  return changes + MapOf<uint32_t>(src + 4 * i, ref + 4 * i, count - i, map + i / 64);
}

template <typename F>
void Classes2(const std::byte* ref, int64_t count, int base, uint8_t* classes) {
  const __m256i exponents = _mm256_set1_epi16((F::kRest >> F::kMantissaBits));
  const __m256i bases = _mm256_set1_epi16(static_cast<int16_t>(base));
  const __m256i most = _mm256_set1_epi16(kClasses - 1);
  const auto below = [&](const std::byte* at) {
    const __m256i exponent =
        _mm256_and_si256(_mm256_srli_epi16(Load(at), F::kMantissaBits), exponents);
    return _mm256_min_epu16(_mm256_subs_epu16(bases, exponent), most);
  };
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const __m256i packed = _mm256_packus_epi16(below(ref + 2 * i), below(ref + 2 * i + 32));
    Store(classes + i, _mm256_permute4x64_epi64(packed, 0xd8));
  }
  ClassesOf<F>(ref + 2 * i, count - i, base, classes + i);
}

void Classes4(const std::byte* ref, int64_t count, int base, uint8_t* classes) {
  const __m256i exponents = _mm256_set1_epi32(255), bases = _mm256_set1_epi32(base);
  const __m256i most = _mm256_set1_epi32(kClasses - 1);
  const auto below = [&](const std::byte* at) {
    const __m256i exponent =
        _mm256_and_si256(_mm256_srli_epi32(Load(at), Float32Word::kMantissaBits), exponents);
    const __m256i difference = _mm256_sub_epi32(bases, exponent);
    return _mm256_min_epi32(_mm256_max_epi32(difference, _mm256_setzero_si256()), most);
  };
  // Packing goes by halves of 16 bytes.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const std::byte* const at = ref + 4 * i;
    const __m256i low = _mm256_packus_epi32(below(at), below(at + 32));
    const __m256i high = _mm256_packus_epi32(below(at + 64), below(at + 96));
    Store(classes + i, _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order));
  }
  ClassesOf<Float32Word>(ref + 4 * i, count - i, base, classes + i);
}

void Above(const uint8_t* numbers, int64_t count, int than, uint64_t* bits) {
  const __m256i least = _mm256_set1_epi8(static_cast<char>(than));
  const auto above = [&](const uint8_t* at) {   // numbers are below 128
    return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpgt_epi8(Load(at), least)));
  };
  int64_t i = 0;
  for (; i + 64 <= count; i += 64) {
    bits[i / 64] = uint64_t{above(numbers + i + 32)} << 32 | above(numbers + i);
  }
  AboveOf(numbers + i, count - i, than, bits + i / 64);
}

void Sums(const uint8_t* classes, int64_t count, const uint16_t* weights, uint32_t* sums) {
  alignas(16) uint8_t low[16], high[16];
  for (int c = 0; c < 16; ++c) {
    low[c] = static_cast<uint8_t>(weights[c]);
    high[c] = static_cast<uint8_t>(weights[c] >> 8);
  }
  const auto table = [](const uint8_t* of) {
    return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(of)));
  };
  const __m256i lows = table(low), highs = table(high), zero = _mm256_setzero_si256();
  int64_t i = 0;
  for (; i + 64 <= count; i += 64) {
    __m256i sum = zero;
    for (int k = 0; k < 2; ++k) {
      const __m256i c = Load(classes + i + 32 * k);
      const __m256i l = _mm256_sad_epu8(_mm256_shuffle_epi8(lows, c), zero);
      const __m256i h = _mm256_sad_epu8(_mm256_shuffle_epi8(highs, c), zero);
      sum = _mm256_add_epi64(sum, _mm256_add_epi64(l, _mm256_slli_epi64(h, 8)));
    }
    const __m128i half =
        _mm_add_epi64(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    sums[i / 64] = static_cast<uint32_t>(_mm_cvtsi128_si64(half) + _mm_extract_epi64(half, 1));
  }
  SumsOf(classes + i, count - i, weights, sums + i / 64);
}

// For the lanes in a mask: the bytes of a shuffle that brings their words of 16 bits together, at the end of
// 8, and of one that brings words to them.
struct WordShuffles {
  alignas(16) uint8_t compress[256][16], expand[256][16];
};
constexpr WordShuffles kWordShuffles = [] {
  WordShuffles made{};
  for (int mask = 0; mask < 256; ++mask) {
    int next = 0, place = 8 - std::popcount(static_cast<unsigned>(mask));
    for (int byte = 0; byte < 16; ++byte) made.compress[mask][byte] = made.expand[mask][byte] = 0x80;
    for (int lane = 0; lane < 8; ++lane) {
      if ((mask >> lane & 1) == 0) continue;
      for (int half = 0; half < 2; ++half) {
        made.compress[mask][2 * place + half] = static_cast<uint8_t>(2 * lane + half);
        made.expand[mask][2 * lane + half] = static_cast<uint8_t>(2 * next + half);
      }
      ++next;
      ++place;
    }
  }
  return made;
}();
__m128i ShuffleOf(const uint8_t (&of)[256][16], uint32_t mask) {
  return _mm_load_si128(reinterpret_cast<const __m128i*>(of[mask]));
}

// The same for bytes, which are brought together at the begin.
struct ByteShuffles {
  alignas(8) uint8_t compress[256][8], expand[256][8];
};
constexpr ByteShuffles kByteShuffles = [] {
  ByteShuffles made{};
  for (int mask = 0; mask < 256; ++mask) {
    uint8_t next = 0;
    for (int byte = 0; byte < 8; ++byte) made.compress[mask][byte] = made.expand[mask][byte] = 0x80;
    for (int lane = 0; lane < 8; ++lane) {
      if ((mask >> lane & 1) == 0) continue;
      made.compress[mask][next] = static_cast<uint8_t>(lane);
      made.expand[mask][lane] = next++;
    }
  }
  return made;
}();
__m128i LoadEight(const uint8_t* at) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at));
}

int64_t Keep(const uint64_t* bits, const uint8_t* from, int64_t count, uint8_t* to) {
  int64_t n = 0;
  for (int64_t i = 0; i < count; i += 64) {
    uint64_t word = bits[i / 64];
    if (count - i < 64) word &= (uint64_t{1} << (count - i)) - 1;
    for (const uint8_t* at = from + i; word != 0; word >>= 8, at += 8) {
      const __m128i kept =
          _mm_shuffle_epi8(LoadEight(at), LoadEight(kByteShuffles.compress[word & 255]));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(to + n), kept);
      n += std::popcount(word & 255);
    }
  }
  return n;
}

void Climb(const uint64_t* bits, const uint8_t* from, int64_t count, uint8_t* to) {
  const __m128i one = _mm_set1_epi8(1);
  for (int64_t i = 0; i < count; i += 8) {
    const uint64_t some = bits[i / 64] >> (i % 64) & 255;
    const __m128i shuffle = LoadEight(kByteShuffles.expand[some]);
    const __m128i next = _mm_shuffle_epi8(_mm_add_epi8(LoadEight(from), one), shuffle);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to + i), next);
    from += std::popcount(some);
  }
}

void Symbols(const uint32_t* lengths, int64_t count, uint8_t* symbols) {
  // As a float a length has its highest bit in the exponent and the next one behind it. The one below that
  // is cleared, so that nothing is rounded up to there.
  const __m256i least = _mm256_set1_epi32(255), none = _mm256_setzero_si256();
  for (int64_t i = 0; i < count; i += 8) {
    const __m256i length = Load(lengths + i);
    const __m256i exact = _mm256_andnot_si256(_mm256_srli_epi32(length, 2), length);
    const __m256i value = _mm256_castps_si256(_mm256_cvtepi32_ps(exact));
    // Without the sign that 2^31 has.
    const __m256i code = _mm256_srli_epi32(_mm256_slli_epi32(value, 1), 23);
    const __m256i symbol = _mm256_max_epi32(_mm256_sub_epi32(code, least), none);
    const __m256i words = _mm256_packus_epi32(symbol, symbol);
    const __m128i together =
        _mm_unpacklo_epi64(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(symbols + i), _mm_packus_epi16(together, together));
  }
}

// Lanes whose bit is set, as a mask of all bits.
__m256i MaskOf(uint32_t bits) {
  const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), each),
                            each);
}
uint32_t BitsOf(__m256i mask) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(mask)));
}

// A table of 16 numbers.
struct Sixteen {
  explicit Sixteen(const uint32_t* of) : low(Load(of)), high(Load(of + 8)) {}
  __m256i At(__m256i c) const {
    const __m256i upper = _mm256_cmpgt_epi32(c, _mm256_set1_epi32(7));
    return _mm256_blendv_epi8(_mm256_permutevar8x32_epi32(low, c),
                              _mm256_permutevar8x32_epi32(high, c), upper);
  }
  __m256i low, high;
};

struct Lanes8 {
  static constexpr int kWidth = 8;
  struct Tables {
    explicit Tables(const LaneModel& model)
        : zero(model.zero),
          reciprocal_zero(model.reciprocal),
          reciprocal_one(model.reciprocal + 16),
          shift_zero(model.shift),
          shift_one(model.shift + 16) {}
    Sixteen zero, reciprocal_zero, reciprocal_one, shift_zero, shift_one;
  };
  using Zero = Sixteen;

  void Load(const uint32_t* states) { state = delta::Load(states); }
  void Store(uint32_t* states) const { delta::Store(states, state); }

  static __m256i ClassesAt(const uint8_t* classes) {
    return _mm256_cvtepu8_epi32(LoadEight(classes));
  }
  static __m256i Divide(__m256i x, __m256i reciprocal, __m256i shift) {
    const __m256i even = _mm256_srli_epi64(_mm256_mul_epu32(x, reciprocal), 32);
    const __m256i odd =
        _mm256_mul_epu32(_mm256_srli_epi64(x, 32), _mm256_srli_epi64(reciprocal, 32));
    return _mm256_srlv_epi32(_mm256_blend_epi32(even, odd, 0xaa), shift);
  }

  template <bool kAll>
  std::byte* Encode(uint32_t one_bits, const uint8_t* classes, const Tables& t, uint32_t lane_bits,
                    std::byte* end) {
    const __m256i all = _mm256_set1_epi32(kLaneScale);
    const __m256i ones = MaskOf(one_bits), lanes = MaskOf(lane_bits);
    const __m256i c = ClassesAt(classes);
    const __m256i zero = t.zero.At(c);
    const __m256i size = _mm256_blendv_epi8(zero, _mm256_sub_epi32(all, zero), ones);
    // Whether it is less than size << 16.
    const __m256i fits = _mm256_cmpgt_epi32(size, _mm256_srli_epi32(state, 16));
    const uint32_t full_bits = ~BitsOf(fits) & lane_bits;
    const int words = std::popcount(full_bits);
    const __m256i low16 = _mm256_and_si256(state, _mm256_set1_epi32(0xffff));
    const __m128i packed =
        _mm_packus_epi32(_mm256_castsi256_si128(low16), _mm256_extracti128_si256(low16, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(end - 16),
                     _mm_shuffle_epi8(packed, ShuffleOf(kWordShuffles.compress, full_bits)));
    // Lanes without a bit keep their state in any case.
    const __m256i x = _mm256_blendv_epi8(_mm256_srli_epi32(state, 16), state, fits);
    const __m256i reciprocal =
        _mm256_blendv_epi8(t.reciprocal_zero.At(c), t.reciprocal_one.At(c), ones);
    const __m256i shift = _mm256_blendv_epi8(t.shift_zero.At(c), t.shift_one.At(c), ones);
    const __m256i quotient = Divide(x, reciprocal, shift);
    // x + quotient * (all - size); a 1 comes behind the other part, which is as great.
    const __m256i next = _mm256_add_epi32(
        x, _mm256_mullo_epi32(_mm256_sub_epi32(quotient, ones), _mm256_sub_epi32(all, size)));
    state = kAll ? next : _mm256_blendv_epi8(state, next, lanes);
    return end - 2 * words;
  }

  template <bool kAll>
  uint32_t Decode(const uint8_t* classes, const Zero& zero_of, uint32_t lane_bits,
                  const std::byte** at) {
    const __m256i all = _mm256_set1_epi32(kLaneScale);
    const __m256i zero = zero_of.At(ClassesAt(classes));
    const __m256i slot = _mm256_and_si256(state, _mm256_set1_epi32(kLaneScale - 1));
    const __m256i zeros = _mm256_cmpgt_epi32(zero, slot);
    const __m256i size = _mm256_blendv_epi8(_mm256_sub_epi32(all, zero), zero, zeros);
    const __m256i start = _mm256_andnot_si256(zeros, zero);
    __m256i next = _mm256_add_epi32(_mm256_mullo_epi32(size, _mm256_srli_epi32(state, kLaneBits)),
                                    _mm256_sub_epi32(slot, start));
    __m256i empty = _mm256_cmpgt_epi32(_mm256_set1_epi32(kLeastLaneState), next);
    const __m256i lanes = MaskOf(lane_bits);
    if constexpr (!kAll) empty = _mm256_and_si256(empty, lanes);
    const uint32_t empty_bits = BitsOf(empty);
    const __m128i words = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(*at)),
                                           ShuffleOf(kWordShuffles.expand, empty_bits));
    const __m256i filled =
        _mm256_or_si256(_mm256_slli_epi32(next, 16), _mm256_cvtepu16_epi32(words));
    next = _mm256_blendv_epi8(next, filled, empty);
    *at += 2 * std::popcount(empty_bits);
    state = kAll ? next : _mm256_blendv_epi8(state, next, lanes);
    return ~BitsOf(zeros) & lane_bits;
  }

  __m256i state;
};

}  // namespace

extern const Kernels kAvx2Kernels;
const Kernels kAvx2Kernels = {
    .name = "avx2",
    .map2 = Map2,
    .map4 = Map4,
    .bfloat16_classes = Classes2<BFloat16Word>,
    .float16_classes = Classes2<Float16Word>,
    .float32_classes = Classes4,
    .steps2 = Steps<BFloat16Word>,
    .steps4 = Steps<Float32Word>,
    .advance2 = Advance<BFloat16Word>,
    .advance4 = Advance<Float32Word>,
    .sums = Sums,
    .count = CountOf,
    .symbols = Symbols,
    .above = Above,
    .keep = Keep,
    .climb = Climb,
    .encode_few = EncodeLanesBy<Lanes8, kFewLanes>,
    .encode_most = EncodeLanesBy<Lanes8, kMostLanes>,
    .decode_few = DecodeLanesBy<Lanes8, kFewLanes>,
    .decode_most = DecodeLanesBy<Lanes8, kMostLanes>};

}  // namespace jaxccomp::delta
#endif
