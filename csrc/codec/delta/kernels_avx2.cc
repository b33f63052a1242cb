// Kernels for x86 with AVX2.
#if defined(__x86_64__)
#include <immintrin.h>

#include <array>

#include "codec/delta/generic.inl"

namespace jaxccomp::delta {
namespace {

__m256i Load(const void* at) { return _mm256_loadu_si256(static_cast<const __m256i*>(at)); }
void Store(void* at, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(at), v); }

void Map2(const std::byte* src, const std::byte* ref, int64_t count, uint64_t* map) {
  int64_t i = 0;
  const auto differ = [&](int64_t at) {   // of 32 values
    const __m256i low = _mm256_cmpeq_epi16(Load(src + 2 * at), Load(ref + 2 * at));
    const __m256i high = _mm256_cmpeq_epi16(Load(src + 2 * at + 32), Load(ref + 2 * at + 32));
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xd8);
    return static_cast<uint64_t>(~static_cast<uint32_t>(_mm256_movemask_epi8(packed)));
  };
  for (; i + 64 <= count; i += 64) map[i / 64] = differ(i + 32) << 32 | differ(i);
  MapOf<uint16_t>(src + 2 * i, ref + 2 * i, count - i, map + i / 64);
}

void Map4(const std::byte* src, const std::byte* ref, int64_t count, uint64_t* map) {
  int64_t i = 0;
  for (; i + 64 <= count; i += 64) {
    uint64_t same = 0;
    for (int k = 0; k < 8; ++k) {
      const __m256i equal =
          _mm256_cmpeq_epi32(Load(src + 4 * i + 32 * k), Load(ref + 4 * i + 32 * k));
      same |= static_cast<uint64_t>(_mm256_movemask_ps(_mm256_castsi256_ps(equal))) << (8 * k);
    }
    map[i / 64] = ~same;
  }
  MapOf<uint32_t>(src + 4 * i, ref + 4 * i, count - i, map + i / 64);
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

// For the lanes in a mask: the bytes of a shuffle that brings their words of 16 bits together, and of one
// that brings words to them.
struct Shuffles {
  alignas(16) uint8_t compress[256][16], expand[256][16];
};
constexpr Shuffles MakeShuffles() {
  Shuffles made{};
  for (int mask = 0; mask < 256; ++mask) {
    int next = 0;
    for (int byte = 0; byte < 16; ++byte) made.compress[mask][byte] = made.expand[mask][byte] = 0x80;
    for (int lane = 0; lane < 8; ++lane) {
      if ((mask >> lane & 1) == 0) continue;
      for (int half = 0; half < 2; ++half) {
        made.compress[mask][2 * next + half] = static_cast<uint8_t>(2 * lane + half);
        made.expand[mask][2 * lane + half] = static_cast<uint8_t>(2 * next + half);
      }
      ++next;
    }
  }
  return made;
}
constexpr Shuffles kShuffles = MakeShuffles();
__m128i ShuffleOf(const uint8_t (&of)[256][16], int mask) {
  return _mm_load_si128(reinterpret_cast<const __m128i*>(of[mask]));
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

struct Tables {
  explicit Tables(const LaneModel& model)
      : kept(model.kept),
        reciprocal_kept(model.reciprocal),
        reciprocal_rest(model.reciprocal + 16),
        shift_kept(model.shift),
        shift_rest(model.shift + 16) {}
  Sixteen kept, reciprocal_kept, reciprocal_rest, shift_kept, shift_rest;
};

__m256i ClassesAt(const uint8_t* classes) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(classes)));
}

// Lanes whose bit is set, as a mask of all bits.
__m256i MaskOf(int bits) {
  const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(bits), each), each);
}
int BitsOf(__m256i mask) { return _mm256_movemask_ps(_mm256_castsi256_ps(mask)); }

__m256i Divide(__m256i x, __m256i reciprocal, __m256i shift) {
  const __m256i even = _mm256_srli_epi64(_mm256_mul_epu32(x, reciprocal), 32);
  const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), _mm256_srli_epi64(reciprocal, 32));
  return _mm256_srlv_epi32(_mm256_blend_epi32(even, odd, 0xaa), shift);
}

std::byte* EncodeStep(__m256i* state, int changed_bits, const uint8_t* classes, const Tables& t,
                      int lane_bits, std::byte* end) {
  const __m256i all = _mm256_set1_epi32(1 << kLaneBits);
  const __m256i changed = MaskOf(changed_bits), lanes = MaskOf(lane_bits);
  const __m256i c = ClassesAt(classes);
  const __m256i kept = t.kept.At(c);
  const __m256i size = _mm256_blendv_epi8(kept, _mm256_sub_epi32(all, kept), changed);
  __m256i x = *state;
  // Not less than size << 16.
  const __m256i fits = _mm256_cmpgt_epi32(size, _mm256_srli_epi32(x, 16));
  const __m256i full = _mm256_andnot_si256(fits, lanes);
  const int full_bits = BitsOf(full), words = __builtin_popcount(static_cast<unsigned>(full_bits));
  const __m256i low16 = _mm256_and_si256(x, _mm256_set1_epi32(0xffff));
  const __m128i packed =
      _mm_packus_epi32(_mm256_castsi256_si128(low16), _mm256_extracti128_si256(low16, 1));
  alignas(16) uint8_t given[16];
  _mm_store_si128(reinterpret_cast<__m128i*>(given),
                  _mm_shuffle_epi8(packed, ShuffleOf(kShuffles.compress, full_bits)));
  end -= 2 * words;
  std::memcpy(end, given, static_cast<size_t>(2 * words));
  x = _mm256_blendv_epi8(x, _mm256_srli_epi32(x, 16), full);
  const __m256i reciprocal =
      _mm256_blendv_epi8(t.reciprocal_kept.At(c), t.reciprocal_rest.At(c), changed);
  const __m256i shift = _mm256_blendv_epi8(t.shift_kept.At(c), t.shift_rest.At(c), changed);
  const __m256i quotient = Divide(x, reciprocal, shift);
  __m256i next = _mm256_add_epi32(x, _mm256_mullo_epi32(quotient, _mm256_sub_epi32(all, size)));
  next = _mm256_add_epi32(next, _mm256_and_si256(kept, changed));
  *state = _mm256_blendv_epi8(*state, next, lanes);
  return end;
}

std::byte* EncodeLanesOf(const uint64_t* map, const uint8_t* classes, int64_t count,
                         const LaneModel& model, std::byte* end) {
  const Tables tables(model);
  __m256i state[4];
  for (__m256i& each : state) each = _mm256_set1_epi32(kLeastLaneState);
  for (int64_t i = (count - 1) / kLanes * kLanes; i >= 0; i -= kLanes) {
    const int64_t n = std::min<int64_t>(kLanes, count - i);
    const uint32_t lanes = n == kLanes ? ~uint32_t{0} : (uint32_t{1} << n) - 1;
    const auto bits = static_cast<uint32_t>(map[i / kGranule] >> (i % kGranule));
    for (int k = 3; k >= 0; --k) {
      end = EncodeStep(&state[k], bits >> (8 * k) & 255, classes + i + 8 * k, tables,
                       lanes >> (8 * k) & 255, end);
    }
  }
  end -= 4 * kLanes;
  for (int k = 0; k < 4; ++k) Store(end + 32 * k, state[k]);
  return end;
}

int DecodeStep(__m256i* state, const uint8_t* classes, const Sixteen& kept_of, int lane_bits,
               const std::byte** at) {
  const __m256i all = _mm256_set1_epi32(1 << kLaneBits), lanes = MaskOf(lane_bits);
  const __m256i kept = kept_of.At(ClassesAt(classes));
  const __m256i x = *state;
  const __m256i slot = _mm256_and_si256(x, _mm256_set1_epi32((1 << kLaneBits) - 1));
  const __m256i changed = _mm256_andnot_si256(_mm256_cmpgt_epi32(kept, slot), lanes);
  const __m256i size = _mm256_blendv_epi8(kept, _mm256_sub_epi32(all, kept), changed);
  const __m256i start = _mm256_and_si256(kept, changed);
  __m256i next = _mm256_add_epi32(_mm256_mullo_epi32(size, _mm256_srli_epi32(x, kLaneBits)),
                                  _mm256_sub_epi32(slot, start));
  const __m256i empty = _mm256_and_si256(
      _mm256_cmpgt_epi32(_mm256_set1_epi32(kLeastLaneState), next), lanes);
  const int empty_bits = BitsOf(empty);
  const __m128i words =
      _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(*at)),
                       ShuffleOf(kShuffles.expand, empty_bits));
  const __m256i filled =
      _mm256_or_si256(_mm256_slli_epi32(next, 16), _mm256_cvtepu16_epi32(words));
  next = _mm256_blendv_epi8(next, filled, empty);
  *at += 2 * __builtin_popcount(static_cast<unsigned>(empty_bits));
  *state = _mm256_blendv_epi8(x, next, lanes);
  return BitsOf(changed);
}

bool DecodeLanesOf(std::span<const std::byte> from, const uint8_t* classes, int64_t count,
                   const LaneModel& model, uint64_t* map) {
  if (from.size() < 4 * kLanes) return false;
  __m256i state[4];
  for (int k = 0; k < 4; ++k) state[k] = Load(from.data() + 32 * k);
  const Sixteen kept(model.kept);
  const std::byte* at = from.data() + 4 * kLanes;
  const std::byte* const end = from.data() + from.size();
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t n = std::min<int64_t>(kLanes, count - i);
    const uint32_t lanes = n == kLanes ? ~uint32_t{0} : (uint32_t{1} << n) - 1;
    uint64_t bits = 0;
    for (int k = 0; k < 4; ++k) {
      const int found =
          DecodeStep(&state[k], classes + i + 8 * k, kept, lanes >> (8 * k) & 255, &at);
      bits |= static_cast<uint64_t>(found) << (8 * k);
    }
    if (at > end) return false;
    uint64_t& word = map[i / kGranule];
    word = i % kGranule == 0 ? bits : word | bits << 32;
  }
  const __m256i least = _mm256_set1_epi32(kLeastLaneState);
  for (const __m256i& each : state) {
    if (BitsOf(_mm256_cmpeq_epi32(each, least)) != 255) return false;
  }
  return at == end;
}

}  // namespace

extern const Kernels kAvx2Kernels;
const Kernels kAvx2Kernels = {
    .name = "avx2",
    .map2 = Map2,
    .map4 = Map4,
    .bfloat16_classes = Classes2<BFloat16Word>,
    .float16_classes = Classes2<Float16Word>,
    .float32_classes = ClassesOf<Float32Word>,
    .sums = Sums,
    .encode_lanes = EncodeLanesOf,
    .decode_lanes = DecodeLanesOf};

}  // namespace jaxccomp::delta
#endif
