// The codecs "ternary" and "tbq": two bits per value. A part of kernels.inl.
//
// A block of n values takes h = ceil(n / 4) bytes. Byte i holds the codes of values i, i + h, i + 2h and
// i + 3h, the first one in the lowest bits, so that no code moves between vector lanes.

// 0 below the threshold; else 1 for positive and 3 for negative values.
inline uint32_t SignedCode(uint32_t bits, bool reached) {
  return (1u | (bits >> 31) << 1) & (0u - static_cast<uint32_t>(reached));
}

// code(i) returns the code of value i.
template <typename Code>
inline void PackPairs(int64_t count, std::byte* out, Code code) {
  const int64_t bytes = (count + 3) / 4;
  const int64_t whole = count - 3 * bytes;   // bytes that hold four codes
  auto* codes = reinterpret_cast<unsigned char*>(out);
  int64_t i = 0;
  JAXCCOMP_INDEPENDENT
  for (; i < whole; ++i) {
    codes[i] = static_cast<unsigned char>(code(i) | code(i + bytes) << 2 |
                                          code(i + 2 * bytes) << 4 | code(i + 3 * bytes) << 6);
  }
  for (; i < bytes; ++i) {
    uint32_t byte = 0;
    for (int part = 0; part < 4 && i + part * bytes < count; ++part) {
      byte |= code(i + part * bytes) << (2 * part);
    }
    codes[i] = static_cast<unsigned char>(byte);
  }
}

void EncodeTernary(const void* values, int64_t count, const uint16_t* random, std::byte* scale,
                   std::byte* codes) {
  auto* x = static_cast<const Bits*>(values);
  const uint32_t greatest = GreatestMagnitude(x, count);
  if (greatest < kMinScale || greatest >= kInfinity) {
    StoreFloat(greatest < kMinScale ? 0 : kNaN, scale);
    for (int64_t i = 0; i < (count + 3) / 4; ++i) codes[i] = std::byte{0};
    return;
  }
  StoreFloat(greatest, scale);
  const float step = FloatOf(greatest);
  if (random == nullptr) {
    const auto half = static_cast<int32_t>(BitsOf(0.5f * step));
    return PackPairs(count, codes, [=](int64_t i) {
      return SignedCode(x[i], static_cast<int32_t>(x[i] & kMagnitude) > half);
    });
  }
  // |x| >= (1 - u) * scale has the probability |x| / scale.
  PackPairs(count, codes, [=](int64_t i) {
    const auto left = static_cast<float>(0xffff - static_cast<int32_t>(random[i]));
    const float minimum = (left * 0x1p-16f + 0x1p-17f) * step;
    return SignedCode(x[i], static_cast<int32_t>(x[i] & kMagnitude) >=
                                static_cast<int32_t>(BitsOf(minimum)));
  });
}

void EncodeThreshold(const void* values, int64_t count, float threshold, std::byte* codes) {
  auto* x = static_cast<const Bits*>(values);
  const auto minimum = static_cast<int32_t>(BitsOf(threshold));
  PackPairs(count, codes, [=](int64_t i) {
    const auto magnitude = static_cast<int32_t>(x[i] & kMagnitude);
    const uint32_t finite = 0u - static_cast<uint32_t>(magnitude < static_cast<int32_t>(kInfinity));
    return (SignedCode(x[i], magnitude >= minimum) & finite) | (2 & ~finite);
  });
}

template <bool kAdd>
void DecodePairs(const float* meanings, const std::byte* codes, int64_t count, void* values) {
  auto* in = reinterpret_cast<const unsigned char*>(codes);
  auto* out = static_cast<Unaligned<float>*>(values);
  const int64_t bytes = (count + 3) / 4;
  for (int part = 0; part < 4; ++part) {
    const int64_t n = count - part * bytes < bytes ? count - part * bytes : bytes;
    int64_t i = 0;
#if defined(__AVX512F__)
    // The permutation uses four bits per lane; the table repeats, so that only the lowest two matter.
    const __m512 table = _mm512_maskz_broadcast_f32x4(0xffff, _mm_loadu_ps(meanings));
    const __m128i shift = _mm_cvtsi32_si128(2 * part);
    for (; i + 16 <= n; i += 16) {
      const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
      const __m512i code =
          _mm512_maskz_srl_epi32(0xffff, _mm512_maskz_cvtepu8_epi32(0xffff, packed), shift);
      __m512 value = _mm512_maskz_permutexvar_ps(0xffff, code, table);
      if constexpr (kAdd) value = _mm512_add_ps(_mm512_loadu_ps(out + i), value);
      _mm512_storeu_ps(out + i, value);
    }
#else
    // Selected by masks: vectorises, unlike a table look-up.
    const uint32_t a = BitsOf(meanings[0]), b = BitsOf(meanings[1]);
    const uint32_t c = BitsOf(meanings[2]), d = BitsOf(meanings[3]);
    const int64_t vectors = n / 16 * 16;
    JAXCCOMP_INDEPENDENT
    for (; i < vectors; ++i) {
      const uint32_t code = static_cast<uint32_t>(in[i]) >> (2 * part);
      const uint32_t low = 0u - (code & 1), high = 0u - (code >> 1 & 1);
      const uint32_t bits = (((a & ~low) | (b & low)) & ~high) | (((c & ~low) | (d & low)) & high);
      Put<kAdd>(out + i, FloatOf(bits));
    }
#endif
    for (; i < n; ++i) Put<kAdd>(out + i, meanings[in[i] >> (2 * part) & 3]);
    out += bytes;
  }
}
