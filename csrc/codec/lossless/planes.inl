// Words to byte planes and back with vectors. The order of words in a group is such that no byte crosses a lane
// of 16 bytes. A part of kernels.inl.

alignas(16) constexpr uint8_t kGather4[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
alignas(16) constexpr uint8_t kGather8[16] = {0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15};

// Shifts 16-bit words: bits move between neighbouring bytes.
template <int kShift>
inline U8 ShiftLeft(U8 v) { return U8(U16(v) << kShift); }
template <int kShift>
inline U8 ShiftRight(U8 v) { return U8(U16(v) >> kShift); }

// The exponent of bfloat16 and float32 crosses a byte boundary: AVX-512 rotates the top half word by one bit; AVX2
// rotates the bytes after the split, which are fewer and cheaper to rotate.
#if defined(__AVX512VBMI2__)
template <Layout layout>
inline U8 Rotate(U8 v) {
  if constexpr (layout == Layout::kBFloat16) return U8(_mm512_shldi_epi16(Native(v), Native(v), 1));
  if constexpr (layout == Layout::kFloat32) {
    return U8(_mm512_shldv_epi16(Native(v), Native(v), _mm512_set1_epi32(0x00010000)));
  }
  return v;
}
template <Layout layout>
inline U8 RotateBack(U8 v) {
  if constexpr (layout == Layout::kBFloat16) return U8(_mm512_shrdi_epi16(Native(v), Native(v), 1));
  if constexpr (layout == Layout::kFloat32) {
    return U8(_mm512_shrdv_epi16(Native(v), Native(v), _mm512_set1_epi32(0x00010000)));
  }
  return v;
}
inline void CutSign(U8&, U8&) {}
inline void JoinSign(U8&, U8&) {}
#else
template <Layout layout>
inline U8 Rotate(U8 v) { return v; }
template <Layout layout>
inline U8 RotateBack(U8 v) { return v; }
inline void CutSign(U8& low, U8& top) {
  const Mask<U8> sign = Negative(top), odd = Negative(low);
  low = CountUp(low + low, sign);
  top = CountUp(top + top, odd);
}
inline void JoinSign(U8& low, U8& top) {
  const U8 sign = ShiftLeft<7>(low) & 0x80, odd = ShiftLeft<7>(top) & 0x80;
  low = (ShiftRight<1>(low) & 0x7f) | odd;
  top = (ShiftRight<1>(top) & 0x7f) | sign;
}
#endif

inline U8 LowBytes(U8 v) { return v & U8(Fill<U16>(255)); }

// Converts `kBytes` vectors of words to `kBytes` planes, lowest byte first.
template <int kBytes>
inline void Deinterleave(const U8* in, U8* planes) {
  if constexpr (kBytes == 1) {
    planes[0] = in[0];
  } else if constexpr (kBytes == 2) {
    planes[0] = Pack16(LowBytes(in[0]), LowBytes(in[1]));
    planes[1] = Pack16(ShiftRight<8>(in[0]), ShiftRight<8>(in[1]));
  } else if constexpr (kBytes == 4) {
    U8 v[4];
    for (int k = 0; k < 4; ++k) v[k] = LookUp(in[k], TableOf(kGather4));
    const U8 a = UnpackLow32(v[0], v[1]), b = UnpackLow32(v[2], v[3]);
    const U8 c = UnpackHigh32(v[0], v[1]), d = UnpackHigh32(v[2], v[3]);
    planes[0] = UnpackLow64(a, b);
    planes[1] = UnpackHigh64(a, b);
    planes[2] = UnpackLow64(c, d);
    planes[3] = UnpackHigh64(c, d);
  } else {
    U8 v[8];
    for (int k = 0; k < 8; ++k) v[k] = LookUp(in[k], TableOf(kGather8));
    for (int half = 0; half < 2; ++half) {
      U8 pair[4];
      for (int k = 0; k < 4; ++k) {
        pair[k] = half == 0 ? UnpackLow16(v[2 * k], v[2 * k + 1])
                            : UnpackHigh16(v[2 * k], v[2 * k + 1]);
      }
      const U8 a = UnpackLow32(pair[0], pair[1]), b = UnpackLow32(pair[2], pair[3]);
      const U8 c = UnpackHigh32(pair[0], pair[1]), d = UnpackHigh32(pair[2], pair[3]);
      planes[4 * half] = UnpackLow64(a, b);
      planes[4 * half + 1] = UnpackHigh64(a, b);
      planes[4 * half + 2] = UnpackLow64(c, d);
      planes[4 * half + 3] = UnpackHigh64(c, d);
    }
  }
}

template <int kBytes>
inline void Interleave(const U8* planes, U8* out) {
  if constexpr (kBytes == 1) {
    out[0] = planes[0];
  } else if constexpr (kBytes == 2) {
    out[0] = UnpackLow8(planes[0], planes[1]);
    out[1] = UnpackHigh8(planes[0], planes[1]);
  } else if constexpr (kBytes == 4) {
    const U8 a = UnpackLow8(planes[0], planes[1]), b = UnpackHigh8(planes[0], planes[1]);
    const U8 c = UnpackLow8(planes[2], planes[3]), d = UnpackHigh8(planes[2], planes[3]);
    out[0] = UnpackLow16(a, c);
    out[1] = UnpackHigh16(a, c);
    out[2] = UnpackLow16(b, d);
    out[3] = UnpackHigh16(b, d);
  } else {
    for (int half = 0; half < 2; ++half) {
      U8 pair[4];
      for (int p = 0; p < 4; ++p) {
        pair[p] = half == 0 ? UnpackLow8(planes[2 * p], planes[2 * p + 1])
                            : UnpackHigh8(planes[2 * p], planes[2 * p + 1]);
      }
      const U8 a = UnpackLow16(pair[0], pair[1]), b = UnpackLow16(pair[2], pair[3]);
      const U8 c = UnpackHigh16(pair[0], pair[1]), d = UnpackHigh16(pair[2], pair[3]);
      out[4 * half] = UnpackLow32(a, b);
      out[4 * half + 1] = UnpackHigh32(a, b);
      out[4 * half + 2] = UnpackLow32(c, d);
      out[4 * half + 3] = UnpackHigh32(c, d);
    }
  }
}

constexpr uint8_t kBias = 896 >> 4;   // subtracted from float64's exponent, in its top byte

// Converts the top bytes of words to the planes that share their bits.
template <Layout layout>
inline void CutTop(U8* p) {
  if constexpr (layout == Layout::kBFloat16 || layout == Layout::kFloat32) {
    CutSign(p[Info(layout).word_bytes - 2], p[Info(layout).word_bytes - 1]);
  } else if constexpr (layout == Layout::kFloat16) {
    const U8 top = p[1];
    p[1] = (top & 3) | (ShiftRight<5>(top) & 4);
    p[2] = ShiftRight<2>(top) & 31;
  } else if constexpr (layout == Layout::kFloat64) {
    const U8 low = p[6], biased = p[7] - kBias;
    p[6] = (low & 15) | (ShiftRight<3>(p[7]) & 16);
    p[7] = ShiftRight<4>(biased) & 7;
    p[8] = (ShiftLeft<4>(biased) & 0xf0) | (ShiftRight<4>(low) & 15);
  }
}

template <Layout layout>
inline void JoinTop(U8* p) {
  if constexpr (layout == Layout::kBFloat16 || layout == Layout::kFloat32) {
    JoinSign(p[Info(layout).word_bytes - 2], p[Info(layout).word_bytes - 1]);
  } else if constexpr (layout == Layout::kFloat16) {
    p[1] = (p[1] & 3) | (ShiftLeft<5>(p[1]) & 0x80) | (ShiftLeft<2>(p[2]) & 0x7c);
  } else if constexpr (layout == Layout::kFloat64) {
    const U8 high = p[6];
    const U8 biased = (ShiftLeft<4>(p[7]) & 0xf0) | (ShiftRight<4>(p[8]) & 15);
    p[6] = (high & 15) | (ShiftLeft<4>(p[8]) & 0xf0);
    p[7] = ((biased + kBias) & 127) | (ShiftLeft<3>(high) & 0x80);
  }
}

// Bytes to prefetch ahead. Measured: with stores to the second-level cache in between, loads from it
// are late with a shorter distance.
constexpr int64_t kAhead = 4096;

// Makes a vector of each plane from the words at `from`, from + 64, ..., XORed with `other`.
template <Layout layout, bool kDelta>
inline void Cut(const uint8_t* from, const uint8_t* other, U8* planes) {
  constexpr int kBytes = Info(layout).word_bytes;
  U8 words[kBytes];
  for (int b = 0; b < kBytes; ++b) {
    __builtin_prefetch(from + kAhead + 64 * b);
    words[b] = Load<U8>(from + 64 * b);
    if constexpr (kDelta) words[b] ^= Load<U8>(other + 64 * b);
    words[b] = Rotate<layout>(words[b]);
  }
  Deinterleave<kBytes>(words, planes);
  CutTop<layout>(planes);
}

// The inverse; overwrites `planes`.
template <Layout layout, bool kDelta>
inline void Join(U8* planes, uint8_t* to, const uint8_t* other) {
  constexpr int kBytes = Info(layout).word_bytes;
  U8 words[kBytes];
  JoinTop<layout>(planes);
  Interleave<kBytes>(planes, words);
  for (int b = 0; b < kBytes; ++b) {
    words[b] = RotateBack<layout>(words[b]);
    if constexpr (kDelta) words[b] ^= Load<U8>(other + 64 * b);
    Store(to + 64 * b, words[b]);
  }
}

template <Layout layout, bool kDelta>
inline void SplitGroups(const void* src, const void* ref, int64_t count, uint8_t* const* planes) {
  constexpr int kBytes = Info(layout).word_bytes, kPlanes = Info(layout).planes;
  auto* from = static_cast<const uint8_t*>(src);
  auto* other = static_cast<const uint8_t*>(ref);
  uint8_t* out[kPlanes];   // a local copy: for the compiler, a store could modify `planes`
  for (int p = 0; p < kPlanes; ++p) out[p] = planes[p];
  for (int64_t i = 0; i + 64 <= count; i += 64) {
    for (int part = 0; part < 64; part += kVectorBytes) {
      U8 cut[kPlanes];
      Cut<layout, kDelta>(from + i * kBytes + part, kDelta ? other + i * kBytes + part : nullptr,
                          cut);
      for (int p = 0; p < kPlanes; ++p) Store(out[p] + i + part, cut[p]);
    }
  }
}

template <Layout layout>
void Split(const void* src, const void* ref, int64_t count, uint8_t* const* planes) {
  ref == nullptr ? SplitGroups<layout, false>(src, ref, count, planes)
                 : SplitGroups<layout, true>(src, ref, count, planes);
  SplitFrom<layout>(count & ~int64_t{63}, src, ref, count, planes);
}

template <Layout layout, bool kDelta>
inline void MergeGroups(void* dst, const void* ref, int64_t count, const uint8_t* const* planes) {
  constexpr int kBytes = Info(layout).word_bytes, kPlanes = Info(layout).planes;
  auto* to = static_cast<uint8_t*>(dst);
  auto* other = static_cast<const uint8_t*>(ref);
  const uint8_t* in[kPlanes];
  for (int p = 0; p < kPlanes; ++p) in[p] = planes[p];
  for (int64_t i = 0; i + 64 <= count; i += 64) {
    for (int part = 0; part < 64; part += kVectorBytes) {
      U8 cut[kPlanes];
      for (int p = 0; p < kPlanes; ++p) cut[p] = LoadOnce(in[p] + i + part);
      Join<layout, kDelta>(cut, to + i * kBytes + part,
                           kDelta ? other + i * kBytes + part : nullptr);
    }
  }
}

template <Layout layout>
void Merge(void* dst, const void* ref, int64_t count, const uint8_t* const* planes) {
  ref == nullptr ? MergeGroups<layout, false>(dst, ref, count, planes)
                 : MergeGroups<layout, true>(dst, ref, count, planes);
  MergeFrom<layout>(count & ~int64_t{63}, dst, ref, count, planes);
}
