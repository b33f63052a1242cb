// Hand-written AVX-512 loops where the compiler vectorises badly. A part of kernels.inl.

constexpr __mmask16 kAll = 0xffff;   // for masked intrinsics: g++ 12 warns in its own header about unmasked ones

// Lane l of the result is the greatest lane of v[l]. Each step combines two vectors into one, with half
// the lanes of each.
inline __m512i GreatestLanes(__m512i (&v)[kGroup]) {
  for (int i = 0; i < 8; ++i) {
    const __m512i low = _mm512_maskz_shuffle_i32x4(kAll, v[i], v[i + 8], 0x44);
    const __m512i high = _mm512_maskz_shuffle_i32x4(kAll, v[i], v[i + 8], 0xee);
    v[i] = _mm512_maskz_max_epi32(kAll, low, high);
  }
  for (int i = 0; i < 4; ++i) {
    const __m512i low = _mm512_maskz_shuffle_i32x4(kAll, v[i], v[i + 4], 0x88);
    const __m512i high = _mm512_maskz_shuffle_i32x4(kAll, v[i], v[i + 4], 0xdd);
    v[i] = _mm512_maskz_max_epi32(kAll, low, high);
  }
  for (int i = 0; i < 2; ++i) {
    const __m512i low = _mm512_maskz_unpacklo_epi64(0xff, v[i], v[i + 2]);
    const __m512i high = _mm512_maskz_unpackhi_epi64(0xff, v[i], v[i + 2]);
    v[i] = _mm512_maskz_max_epi32(kAll, low, high);
  }
  const __m512 even = _mm512_castsi512_ps(v[0]), odd = _mm512_castsi512_ps(v[1]);
  const __m512i low = _mm512_castps_si512(_mm512_maskz_shuffle_ps(kAll, even, odd, 0x88));
  const __m512i high = _mm512_castps_si512(_mm512_maskz_shuffle_ps(kAll, even, odd, 0xdd));
  const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
  return _mm512_maskz_permutexvar_epi32(kAll, order, _mm512_maskz_max_epi32(kAll, low, high));
}

inline __m512i Magnitudes(const Bits* x) {
  return _mm512_and_si512(_mm512_loadu_si512(x), _mm512_set1_epi32(static_cast<int>(kMagnitude)));
}

// Integer::Code of 16 values.
template <typename Coder>
inline __m512i CodeVector(const Bits* x, uint32_t keep, float inverse, const uint16_t* random) {
  const __m512i kept =
      _mm512_and_si512(_mm512_loadu_si512(x), _mm512_set1_epi32(static_cast<int>(keep)));
  __m512 steps = _mm512_castsi512_ps(kept);
  if constexpr (Coder::kQuarter) steps = _mm512_mul_ps(steps, _mm512_set1_ps(0.25f));
  steps = _mm512_mul_ps(steps, _mm512_set1_ps(inverse));
  if constexpr (!Coder::kStochastic) {
    return _mm512_castps_si512(_mm512_add_ps(steps, _mm512_set1_ps(kRounder)));
  }
  const __m256i drawn = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(random));
  const __m512 whole =
      _mm512_maskz_cvtepi32_ps(kAll, _mm512_maskz_cvtepu16_epi32(kAll, drawn));
  const __m512 shift = _mm512_add_ps(_mm512_mul_ps(whole, _mm512_set1_ps(0x1p-16f)),
                                     _mm512_set1_ps(0x1p-17f));
  __m512i code = _mm512_maskz_cvt_roundps_epi32(kAll, _mm512_add_ps(steps, shift),
                                                _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  code = _mm512_maskz_min_epi32(kAll, code, _mm512_set1_epi32(Coder::kMaxCode));
  return _mm512_maskz_max_epi32(kAll, code, _mm512_set1_epi32(-Coder::kMaxCode));
}

// For each bit: `low` if set in `mask`, else `high`.
inline __m512i Select(int mask, __m512i low, __m512i high) {
  return _mm512_ternarylogic_epi32(_mm512_set1_epi32(mask), low, high, 0xca);
}

inline void StoreBytes(__m512i lanes, std::byte* out) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_maskz_cvtepi32_epi8(kAll, lanes));
}

template <typename Coder, int64_t kBlock>
inline void EncodeVectors(const Bits* x, uint32_t keep, float inverse, const uint16_t* random,
                          std::byte* out) {
  constexpr int64_t kBytes = kBlock * Coder::kBits / 8;
  const auto code = [=](int64_t at) {
    return CodeVector<Coder>(x + at, keep, inverse, Coder::kStochastic ? random + at : nullptr);
  };
  if constexpr (kBytes < 16) {   // kBytes is 8: one vector of values fills two codes of each byte
    const __m512i codes =
        Select(3, code(0), _mm512_maskz_slli_epi32(kAll, code(16), 4));
    const __m256i low = _mm512_maskz_extracti64x4_epi64(0xf, codes, 0);
    const __m256i high = _mm256_slli_epi32(_mm512_maskz_extracti64x4_epi64(0xf, codes, 1), 2);
    const __m256i bytes = _mm256_ternarylogic_epi32(_mm256_set1_epi32(0x33), low, high, 0xca);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm256_maskz_cvtepi32_epi8(0xff, bytes));
  } else {
    for (int64_t i = 0; i < kBytes; i += 16) {
      __m512i bytes = code(i);
      for (int p = 1; p < Coder::kParts; ++p) {
        const __m512i next = _mm512_maskz_slli_epi32(
            kAll, code(i + p * kBytes), static_cast<unsigned>(p * Coder::kBits));
        bytes = Select((1 << (p * Coder::kBits)) - 1, bytes, next);
      }
      StoreBytes(bytes, out + i);
    }
  }
}

template <bool kAdd>
inline void PutVector(Unaligned<float>* to, __m512 value) {
  if constexpr (kAdd) value = _mm512_add_ps(_mm512_loadu_ps(to), value);
  _mm512_storeu_ps(to, value);
}

template <int64_t kBlock, bool kAdd>
inline void DecodeInt8Vectors(const std::byte* in, float scale, Unaligned<float>* out) {
  const __m512 factor = _mm512_set1_ps(scale);
  for (int64_t i = 0; i < kBlock; i += 16) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
    const __m512i wide = _mm512_maskz_cvtepi8_epi32(kAll, codes);
    PutVector<kAdd>(out + i, _mm512_mul_ps(_mm512_maskz_cvtepi32_ps(kAll, wide), factor));
  }
}

// For int4 and int2: a lane's lowest four bits select one of 16 multiples of the scale. For int2 the
// table repeats, so that only the lowest two bits matter.
template <typename Coder, int64_t kBlock, bool kAdd>
inline void DecodeSmallVectors(const std::byte* in, float scale, Unaligned<float>* out) {
  constexpr int64_t kBytes = kBlock * Coder::kBits / 8;
  const __m512 steps =
      Coder::kBits == 4
          ? _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1)
          : _mm512_setr_ps(0, 1, -2, -1, 0, 1, -2, -1, 0, 1, -2, -1, 0, 1, -2, -1);
  const __m512 multiples = _mm512_mul_ps(steps, _mm512_set1_ps(scale));
  if constexpr (kBytes < 16) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(in));
    const __m512i twice =
        _mm512_maskz_cvtepu8_epi32(kAll, _mm_unpacklo_epi64(bytes, bytes));
    const __m512i shift = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2);
    const __m512i codes = _mm512_maskz_srlv_epi32(kAll, twice, shift);
    PutVector<kAdd>(out, _mm512_maskz_permutexvar_ps(kAll, codes, multiples));
    const __m512i rest = _mm512_maskz_srli_epi32(kAll, codes, 4);
    PutVector<kAdd>(out + 16, _mm512_maskz_permutexvar_ps(kAll, rest, multiples));
  } else {
    for (int64_t i = 0; i < kBytes; i += 16) {
      __m512i codes = _mm512_maskz_cvtepu8_epi32(
          kAll, _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i)));
      for (int p = 0; p < Coder::kParts; ++p) {
        PutVector<kAdd>(out + i + p * kBytes, _mm512_maskz_permutexvar_ps(kAll, codes, multiples));
        codes = _mm512_maskz_srli_epi32(kAll, codes, Coder::kBits);
      }
    }
  }
}

// Float8::Code of 16 values.
template <typename Coder>
inline __m512i Float8Vector(const Bits* x, uint32_t keep, float inverse) {
  const __m512i kept =
      _mm512_and_si512(_mm512_loadu_si512(x), _mm512_set1_epi32(static_cast<int>(keep)));
  const __m512i bits =
      _mm512_castps_si512(_mm512_mul_ps(_mm512_castsi512_ps(kept), _mm512_set1_ps(inverse)));
  const __m512i magnitude =
      _mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(kMagnitude)));
  const __m512i minimum = _mm512_set1_epi32(Coder::kMinNormal);
  const __m512i exponent = _mm512_maskz_max_epi32(
      kAll, _mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(kInfinity))), minimum);
  const __m512i power = _mm512_add_epi32(exponent, _mm512_set1_epi32(Coder::kShift << 23));
  const __m512i rounded = _mm512_castps_si512(
      _mm512_add_ps(_mm512_castsi512_ps(magnitude), _mm512_castsi512_ps(power)));
  const __m512i octaves =
      _mm512_maskz_srli_epi32(kAll, _mm512_sub_epi32(exponent, minimum), Coder::kShift);
  const __m512i code = _mm512_add_epi32(_mm512_sub_epi32(rounded, power), octaves);
  return Select(0x7f, code, _mm512_maskz_srli_epi32(kAll, bits, 24));
}

// For fp8: a shifted code is a float16 of the value (e4m3: of the value times 2^-8). The conversion to
// float keeps subnormals even on threads that flush them.
template <typename Coder, int64_t kBlock, bool kAdd>
inline void DecodeFloat8Vectors(const std::byte* in, float scale, Unaligned<float>* out) {
  const __m512 factor = _mm512_set1_ps(Coder::kFormat == kE4m3 ? scale * 0x1p8f : scale);
  for (int64_t i = 0; i < kBlock; i += 16) {
    const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
    __m256i half;
    if constexpr (Coder::kFormat == kE4m3) {
      half = _mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7);
      half = _mm256_and_si256(half, _mm256_set1_epi16(static_cast<short>(0xbfff)));
    } else {
      half = _mm256_slli_epi16(_mm256_cvtepu8_epi16(codes), 8);
    }
    PutVector<kAdd>(out + i, _mm512_mul_ps(_mm512_maskz_cvtph_ps(kAll, half), factor));
  }
}
