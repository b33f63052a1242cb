// The codec "onebit". A part of kernels.inl.

// Sums of the values with and without the sign bit. Value i is added to partial sum i % kSums, in order,
// so that all instruction sets round alike. A double can hold any sum of floats.
constexpr int kSums = 16;
struct Sums {
  double plain[kSums];
  double negative[kSums];
};

// Adds the partial sums in a fixed tree: pairs at distance 8, then 4, 2 and 1.
inline double Total(double* sums) {
  for (int half = kSums / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) sums[i] = sums[i] + sums[i + half];
  }
  return sums[0];
}

// Values with none of these bits are below 2^-119 and count as 0. A thread flushes only such values, also when it
// rounds float64 to float.
constexpr uint32_t kCounted = 0x7c000000;

// Adds the value to one sum and 0 to the other.
inline void AddValue(uint32_t bits, double* plain, double* negative) {
  const uint32_t kept = bits & (0u - static_cast<uint32_t>((bits & kCounted) != 0));
  const uint32_t sign = 0u - (bits >> 31);
  *plain = *plain + static_cast<double>(FloatOf(kept & ~sign));
  *negative = *negative + static_cast<double>(FloatOf(kept & sign));
}

// The mean's bits; 0 if its magnitude is below kMinScale.
inline uint32_t Mean(double sum, int64_t count) {
  if (count == 0) return 0;
  const float mean = static_cast<float>(sum / static_cast<double>(count));
  return (BitsOf(mean) & kMagnitude) < kMinScale ? 0 : BitsOf(mean);
}

// Accumulator::Add takes 16 values: returns their sign bits and adds the values to the sums.
#if defined(__AVX512F__)
struct Accumulator {
  __m512d plain[2] = {_mm512_setzero_pd(), _mm512_setzero_pd()};
  __m512d negative[2] = {_mm512_setzero_pd(), _mm512_setzero_pd()};

  uint32_t Add(const Bits* x) {
    const __m512i bits = _mm512_loadu_si512(x);
    const __mmask16 sign = _mm512_movepi32_mask(bits);
    const __mmask16 kept =
        _mm512_test_epi32_mask(bits, _mm512_set1_epi32(static_cast<int>(kCounted)));
    const auto* halves = reinterpret_cast<const float*>(x);
    const __m512d value[2] = {_mm512_maskz_cvtps_pd(0xff, _mm256_loadu_ps(halves)),
                              _mm512_maskz_cvtps_pd(0xff, _mm256_loadu_ps(halves + 8))};
    const uint32_t plus = kept & ~sign, minus = kept & sign;
    for (int i = 0; i < 2; ++i) {
      const auto p = static_cast<__mmask8>(plus >> (8 * i));
      const auto n = static_cast<__mmask8>(minus >> (8 * i));
      plain[i] = _mm512_mask_add_pd(plain[i], p, plain[i], value[i]);
      negative[i] = _mm512_mask_add_pd(negative[i], n, negative[i], value[i]);
    }
    return sign;
  }
  void Store(Sums* sums) const {
    for (int i = 0; i < 2; ++i) {
      _mm512_storeu_pd(sums->plain + 8 * i, plain[i]);
      _mm512_storeu_pd(sums->negative + 8 * i, negative[i]);
    }
  }
};
#elif defined(__AVX2__)
struct Accumulator {
  __m256d plain[4] = {}, negative[4] = {};

  uint32_t Add(const Bits* x) {
    const __m128i counted = _mm_set1_epi32(static_cast<int>(kCounted));
    uint32_t sign = 0;
    for (int i = 0; i < 4; ++i) {
      const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + 4 * i));
      const __m128i tiny = _mm_cmpeq_epi32(_mm_and_si128(bits, counted), _mm_setzero_si128());
      const __m128i kept = _mm_andnot_si128(tiny, bits);
      const __m128i minus = _mm_srai_epi32(bits, 31);
      plain[i] = _mm256_add_pd(
          plain[i], _mm256_cvtps_pd(_mm_castsi128_ps(_mm_andnot_si128(minus, kept))));
      negative[i] = _mm256_add_pd(
          negative[i], _mm256_cvtps_pd(_mm_castsi128_ps(_mm_and_si128(minus, kept))));
      sign |= static_cast<uint32_t>(_mm_movemask_ps(_mm_castsi128_ps(bits))) << (4 * i);
    }
    return sign;
  }
  void Store(Sums* sums) const {
    for (int i = 0; i < 4; ++i) {
      _mm256_storeu_pd(sums->plain + 4 * i, plain[i]);
      _mm256_storeu_pd(sums->negative + 4 * i, negative[i]);
    }
  }
};
#else
struct Accumulator {
  Sums held = {};

  uint32_t Add(const Bits* x) {
    for (int i = 0; i < kSums; ++i) AddValue(x[i], held.plain + i, held.negative + i);
    uint32_t sign = 0;
#if defined(__SSE2__)
    for (int i = 0; i < 16; i += 4) {
      const __m128 four = _mm_loadu_ps(reinterpret_cast<const float*>(x + i));
      sign |= static_cast<uint32_t>(_mm_movemask_ps(four)) << i;
    }
#else
    for (int i = 0; i < 16; ++i) sign |= (x[i] >> 31) << i;
#endif
    return sign;
  }
  void Store(Sums* sums) const { *sums = held; }
};
#endif

void EncodeOneBit(const void* values, int64_t count, std::byte* means, std::byte* bits) {
  auto* x = static_cast<const Bits*>(values);
  Accumulator accumulator;
  int64_t negatives = 0, i = 0;
  for (; i + 16 <= count; i += 16) {
    const uint32_t sign = accumulator.Add(x + i);
    negatives += __builtin_popcount(sign);
    *reinterpret_cast<Unaligned<uint16_t>*>(bits + i / 8) = static_cast<uint16_t>(sign);
  }
  Sums sums;
  accumulator.Store(&sums);
  uint32_t sign = 0;
  for (int64_t j = i; j < count; ++j) {
    AddValue(x[j], &sums.plain[j - i], &sums.negative[j - i]);
    sign |= (x[j] >> 31) << (j - i);
  }
  negatives += __builtin_popcount(sign);
  for (int64_t j = i; j < count; j += 8) {
    bits[j / 8] = static_cast<std::byte>(sign >> (j - i));
  }
  const uint32_t plain = Mean(Total(sums.plain), count - negatives);
  const uint32_t negative = Mean(Total(sums.negative), negatives);
  const bool finite = (plain & kInfinity) != kInfinity && (negative & kInfinity) != kInfinity;
  StoreFloat(finite ? plain : kNaN, means);
  StoreFloat(finite ? negative : kNaN, means + 4);
}

template <bool kAdd>
void DecodeOneBit(const std::byte* means, const std::byte* bits, int64_t count, void* values) {
  auto* out = static_cast<Unaligned<float>*>(values);
  const uint32_t plain = *reinterpret_cast<const Bits*>(means);
  const uint32_t negative = *reinterpret_cast<const Bits*>(means + 4);
  int64_t i = 0;
#if defined(__AVX512F__)
  const __m512 means_of[2] = {_mm512_set1_ps(FloatOf(plain)), _mm512_set1_ps(FloatOf(negative))};
  for (; i + 16 <= count; i += 16) {
    const __mmask16 sign = *reinterpret_cast<const Unaligned<uint16_t>*>(bits + i / 8);
    __m512 value = _mm512_mask_blend_ps(sign, means_of[0], means_of[1]);
    if constexpr (kAdd) value = _mm512_add_ps(_mm512_loadu_ps(out + i), value);
    _mm512_storeu_ps(out + i, value);
  }
#elif defined(__AVX2__)
  const __m256 means_of[2] = {_mm256_set1_ps(FloatOf(plain)), _mm256_set1_ps(FloatOf(negative))};
  const __m256i places = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  for (; i + 8 <= count; i += 8) {
    const __m256i byte = _mm256_set1_epi32(static_cast<int>(bits[i / 8]));
    const __m256i sign = _mm256_cmpeq_epi32(_mm256_and_si256(byte, places), places);
    __m256 value = _mm256_blendv_ps(means_of[0], means_of[1], _mm256_castsi256_ps(sign));
    auto* to = reinterpret_cast<float*>(out + i);
    if constexpr (kAdd) value = _mm256_add_ps(_mm256_loadu_ps(to), value);
    _mm256_storeu_ps(to, value);
  }
#else
  for (; i + 8 <= count; i += 8) {
    const auto byte = static_cast<uint32_t>(bits[i / 8]);
    for (uint32_t j = 0; j < 8; ++j) {
      const uint32_t sign = 0u - (byte >> j & 1);
      Put<kAdd>(out + i + j, FloatOf((negative & sign) | (plain & ~sign)));
    }
  }
#endif
  for (; i < count; ++i) {
    const bool sign = (static_cast<uint32_t>(bits[i / 8]) >> (i % 8) & 1) != 0;
    Put<kAdd>(out + i, FloatOf(sign ? negative : plain));
  }
}
