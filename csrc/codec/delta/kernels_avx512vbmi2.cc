// Kernels for x86 with AVX-512 F, BW, VL, DQ, VBMI and VBMI2.
#if defined(__x86_64__)
#include <immintrin.h>

#include "codec/delta/generic.inl"

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 warns of its own intrinsics, whose unused operand is left undefined on purpose.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace jaxccomp::delta {
namespace {

void Map2(const std::byte* src, const std::byte* ref, int64_t count, uint64_t* map) {
  int64_t i = 0;
  for (; i + 64 <= count; i += 64) {
    const __m512i a0 = _mm512_loadu_si512(src + 2 * i), a1 = _mm512_loadu_si512(src + 2 * i + 64);
    const __m512i b0 = _mm512_loadu_si512(ref + 2 * i), b1 = _mm512_loadu_si512(ref + 2 * i + 64);
    map[i / 64] = static_cast<uint64_t>(_mm512_cmpneq_epu16_mask(a1, b1)) << 32 |
                  _mm512_cmpneq_epu16_mask(a0, b0);
  }
  MapOf<uint16_t>(src + 2 * i, ref + 2 * i, count - i, map + i / 64);
}

void Map4(const std::byte* src, const std::byte* ref, int64_t count, uint64_t* map) {
  int64_t i = 0;
  for (; i + 64 <= count; i += 64) {
    uint64_t bits = 0;
    for (int k = 0; k < 4; ++k) {
      const __m512i a = _mm512_loadu_si512(src + 4 * i + 64 * k);
      const __m512i b = _mm512_loadu_si512(ref + 4 * i + 64 * k);
      bits |= static_cast<uint64_t>(_mm512_cmpneq_epu32_mask(a, b)) << (16 * k);
    }
    map[i / 64] = bits;
  }
  MapOf<uint32_t>(src + 4 * i, ref + 4 * i, count - i, map + i / 64);
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

// 16 states of one step.
struct Tables {
  explicit Tables(const LaneModel& model)
      : kept(_mm512_loadu_si512(model.kept)),
        reciprocal_kept(_mm512_loadu_si512(model.reciprocal)),
        reciprocal_rest(_mm512_loadu_si512(model.reciprocal + 16)),
        shift_kept(_mm512_loadu_si512(model.shift)),
        shift_rest(_mm512_loadu_si512(model.shift + 16)) {}
  __m512i kept, reciprocal_kept, reciprocal_rest, shift_kept, shift_rest;
};

inline __m512i ClassesAt(const uint8_t* classes) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(classes)));
}

// x / f by reciprocals.
inline __m512i Divide(__m512i x, __m512i reciprocal, __m512i shift) {
  const __m512i even = _mm512_srli_epi64(_mm512_mul_epu32(x, reciprocal), 32);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), _mm512_srli_epi64(reciprocal, 32));
  return _mm512_srlv_epi32(_mm512_mask_mov_epi32(even, 0xaaaa, odd), shift);
}

inline std::byte* EncodeStep(__m512i* state, __mmask16 changed, const uint8_t* classes,
                             const Tables& t, __mmask16 lanes, std::byte* end) {
  const __m512i all = _mm512_set1_epi32(1 << kLaneBits);
  const __m512i c = ClassesAt(classes);
  const __m512i kept = _mm512_permutexvar_epi32(c, t.kept);
  const __m512i size = _mm512_mask_sub_epi32(kept, changed, all, kept);
  __m512i x = *state;
  const __mmask16 full =
      _mm512_mask_cmpge_epu32_mask(lanes, x, _mm512_slli_epi32(size, 16));
  const int words = __builtin_popcount(full);
  end -= 2 * words;
  // In the order of the lanes; what lies behind them there is written again.
  const __m512i given = _mm512_maskz_compress_epi32(full, x);
  _mm512_mask_cvtepi32_storeu_epi16(end, static_cast<__mmask16>((1u << words) - 1), given);
  x = _mm512_mask_srli_epi32(x, full, x, 16);
  const __m512i reciprocal = _mm512_mask_permutexvar_epi32(
      _mm512_permutexvar_epi32(c, t.reciprocal_kept), changed, c, t.reciprocal_rest);
  const __m512i shift = _mm512_mask_permutexvar_epi32(
      _mm512_permutexvar_epi32(c, t.shift_kept), changed, c, t.shift_rest);
  const __m512i quotient = Divide(x, reciprocal, shift);
  // x + quotient * (all - size), and behind those that are kept.
  __m512i next = _mm512_add_epi32(x, _mm512_mullo_epi32(quotient, _mm512_sub_epi32(all, size)));
  next = _mm512_mask_add_epi32(next, changed, next, kept);
  *state = _mm512_mask_mov_epi32(*state, lanes, next);
  return end;
}

std::byte* EncodeLanesOf(const uint64_t* map, const uint8_t* classes, int64_t count,
                         const LaneModel& model, std::byte* end) {
  const Tables tables(model);
  __m512i low = _mm512_set1_epi32(kLeastLaneState), high = low;
  for (int64_t i = (count - 1) / kLanes * kLanes; i >= 0; i -= kLanes) {
    const int64_t n = std::min<int64_t>(kLanes, count - i);
    const uint32_t lanes = n == kLanes ? ~uint32_t{0} : (uint32_t{1} << n) - 1;
    const auto bits = static_cast<uint32_t>(map[i / kGranule] >> (i % kGranule));
    end = EncodeStep(&high, static_cast<__mmask16>(bits >> 16), classes + i + 16, tables,
                     static_cast<__mmask16>(lanes >> 16), end);
    end = EncodeStep(&low, static_cast<__mmask16>(bits), classes + i, tables,
                     static_cast<__mmask16>(lanes), end);
  }
  end -= 4 * kLanes;
  _mm512_storeu_si512(end, low);
  _mm512_storeu_si512(end + 64, high);
  return end;
}

// Returns the mask of those that have changed. At most 32 bytes behind `*at` are read.
inline __mmask16 DecodeStep(__m512i* state, const uint8_t* classes, __m512i kept_of,
                            __mmask16 lanes, const std::byte** at) {
  const __m512i all = _mm512_set1_epi32(1 << kLaneBits);
  const __m512i kept = _mm512_permutexvar_epi32(ClassesAt(classes), kept_of);
  const __m512i x = *state;
  const __m512i slot = _mm512_and_si512(x, _mm512_set1_epi32((1 << kLaneBits) - 1));
  const __mmask16 changed = _mm512_mask_cmpge_epu32_mask(lanes, slot, kept);
  const __m512i size = _mm512_mask_sub_epi32(kept, changed, all, kept);
  __m512i next = _mm512_add_epi32(
      _mm512_mullo_epi32(size, _mm512_srli_epi32(x, kLaneBits)),
      _mm512_mask_sub_epi32(slot, changed, slot, kept));
  const __mmask16 empty =
      _mm512_mask_cmplt_epu32_mask(lanes, next, _mm512_set1_epi32(kLeastLaneState));
  const __m512i words =
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(*at)));
  next = _mm512_mask_or_epi32(next, empty, _mm512_slli_epi32(next, 16),
                              _mm512_maskz_expand_epi32(empty, words));
  *at += 2 * __builtin_popcount(empty);
  *state = _mm512_mask_mov_epi32(*state, lanes, next);
  return changed;
}

bool DecodeLanesOf(std::span<const std::byte> from, const uint8_t* classes, int64_t count,
                   const LaneModel& model, uint64_t* map) {
  if (from.size() < 4 * kLanes) return false;
  __m512i low = _mm512_loadu_si512(from.data()), high = _mm512_loadu_si512(from.data() + 64);
  const __m512i kept = _mm512_loadu_si512(model.kept);
  const std::byte* at = from.data() + 4 * kLanes;
  const std::byte* const end = from.data() + from.size();
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t n = std::min<int64_t>(kLanes, count - i);
    const uint32_t lanes = n == kLanes ? ~uint32_t{0} : (uint32_t{1} << n) - 1;
    uint64_t bits = DecodeStep(&low, classes + i, kept, static_cast<__mmask16>(lanes), &at);
    bits |= static_cast<uint64_t>(DecodeStep(&high, classes + i + 16, kept,
                                             static_cast<__mmask16>(lanes >> 16), &at))
            << 16;
    if (at > end) return false;
    uint64_t& word = map[i / kGranule];
    word = i % kGranule == 0 ? bits : word | bits << 32;
  }
  const __m512i least = _mm512_set1_epi32(kLeastLaneState);
  return at == end && _mm512_cmpneq_epu32_mask(low, least) == 0 &&
         _mm512_cmpneq_epu32_mask(high, least) == 0;
}

}  // namespace

extern const Kernels kAvx512Kernels;
const Kernels kAvx512Kernels = {
    .name = "avx512vbmi2",
    .map2 = Map2,
    .map4 = Map4,
    .bfloat16_classes = Classes2<BFloat16Word>,
    .float16_classes = Classes2<Float16Word>,
    .float32_classes = Classes4,
    .sums = Sums,
    .encode_lanes = EncodeLanesOf,
    .decode_lanes = DecodeLanesOf};

}  // namespace jaxccomp::delta
#endif
