// Words to byte planes and back with vectors of any length, for the tables that have vectors. No
// byte crosses a lane of 16 bytes: that is what the order of words in a group is made for.
//
// Before including it, define in an unnamed namespace of jaxccomp::lossless: Vector, kVectorBytes;
// LoadVector, LoadOnce, StoreVector; Or, Xor, And8 (with the same byte everywhere), Add8, Sub8,
// Set8; ShiftLeft16<n>, ShiftRight16<n>; Shuffle8 (lanes with one 16-byte pattern), Pack16,
// UnpackLow8, UnpackHigh8 and so on for 16, 32 and 64 bits; and for the layouts whose exponents
// lie over a byte's edge Rotate and RotateBack on words, CutSign and JoinSign on planes.

namespace jaxccomp::lossless {
namespace {

alignas(16) constexpr uint8_t kGather4[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
alignas(16) constexpr uint8_t kGather8[16] = {0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15};

// `kBytes` vectors of words to as many planes, lowest byte first.
template <int kBytes>
inline void Deinterleave(const Vector* in, Vector* planes) {
  if constexpr (kBytes == 1) {
    planes[0] = in[0];
  } else if constexpr (kBytes == 2) {
    planes[0] = Pack16(LowByte16(in[0]), LowByte16(in[1]));
    planes[1] = Pack16(ShiftRight16<8>(in[0]), ShiftRight16<8>(in[1]));
  } else if constexpr (kBytes == 4) {
    Vector v[4];
    for (int k = 0; k < 4; ++k) v[k] = Shuffle8(in[k], kGather4);
    const Vector a = UnpackLow32(v[0], v[1]), b = UnpackLow32(v[2], v[3]);
    const Vector c = UnpackHigh32(v[0], v[1]), d = UnpackHigh32(v[2], v[3]);
    planes[0] = UnpackLow64(a, b);
    planes[1] = UnpackHigh64(a, b);
    planes[2] = UnpackLow64(c, d);
    planes[3] = UnpackHigh64(c, d);
  } else {
    Vector v[8];
    for (int k = 0; k < 8; ++k) v[k] = Shuffle8(in[k], kGather8);
    for (int half = 0; half < 2; ++half) {
      Vector pair[4];
      for (int k = 0; k < 4; ++k) {
        pair[k] = half == 0 ? UnpackLow16(v[2 * k], v[2 * k + 1])
                            : UnpackHigh16(v[2 * k], v[2 * k + 1]);
      }
      const Vector a = UnpackLow32(pair[0], pair[1]), b = UnpackLow32(pair[2], pair[3]);
      const Vector c = UnpackHigh32(pair[0], pair[1]), d = UnpackHigh32(pair[2], pair[3]);
      planes[4 * half] = UnpackLow64(a, b);
      planes[4 * half + 1] = UnpackHigh64(a, b);
      planes[4 * half + 2] = UnpackLow64(c, d);
      planes[4 * half + 3] = UnpackHigh64(c, d);
    }
  }
}

template <int kBytes>
inline void Interleave(const Vector* planes, Vector* out) {
  if constexpr (kBytes == 1) {
    out[0] = planes[0];
  } else if constexpr (kBytes == 2) {
    out[0] = UnpackLow8(planes[0], planes[1]);
    out[1] = UnpackHigh8(planes[0], planes[1]);
  } else if constexpr (kBytes == 4) {
    const Vector a = UnpackLow8(planes[0], planes[1]), b = UnpackHigh8(planes[0], planes[1]);
    const Vector c = UnpackLow8(planes[2], planes[3]), d = UnpackHigh8(planes[2], planes[3]);
    out[0] = UnpackLow16(a, c);
    out[1] = UnpackHigh16(a, c);
    out[2] = UnpackLow16(b, d);
    out[3] = UnpackHigh16(b, d);
  } else {
    for (int half = 0; half < 2; ++half) {
      Vector pair[4];
      for (int p = 0; p < 4; ++p) {
        pair[p] = half == 0 ? UnpackLow8(planes[2 * p], planes[2 * p + 1])
                            : UnpackHigh8(planes[2 * p], planes[2 * p + 1]);
      }
      const Vector a = UnpackLow16(pair[0], pair[1]), b = UnpackLow16(pair[2], pair[3]);
      const Vector c = UnpackHigh16(pair[0], pair[1]), d = UnpackHigh16(pair[2], pair[3]);
      out[4 * half] = UnpackLow32(a, b);
      out[4 * half + 1] = UnpackHigh32(a, b);
      out[4 * half + 2] = UnpackLow32(c, d);
      out[4 * half + 3] = UnpackHigh32(c, d);
    }
  }
}

// The top bytes of words to the planes that share them.
template <Layout layout>
inline void CutTop(Vector* p) {
  if constexpr (layout == Layout::kBFloat16 || layout == Layout::kFloat32) {
    CutSign(p[Info(layout).word_bytes - 2], p[Info(layout).word_bytes - 1]);
  } else if constexpr (layout == Layout::kFloat16) {
    const Vector top = p[1];
    p[1] = Or(And8(top, 3), And8(ShiftRight16<5>(top), 4));
    p[2] = And8(ShiftRight16<2>(top), 31);
  } else if constexpr (layout == Layout::kFloat64) {
    const Vector low = p[6], top = p[7];
    const Vector biased = Sub8(top, Set8(896 >> 4));
    p[6] = Or(And8(low, 15), And8(ShiftRight16<3>(top), 16));
    p[7] = And8(ShiftRight16<4>(biased), 7);
    p[8] = Or(And8(ShiftLeft16<4>(biased), 0xf0), And8(ShiftRight16<4>(low), 15));
  }
}

template <Layout layout>
inline void JoinTop(Vector* p) {
  if constexpr (layout == Layout::kBFloat16 || layout == Layout::kFloat32) {
    JoinSign(p[Info(layout).word_bytes - 2], p[Info(layout).word_bytes - 1]);
  } else if constexpr (layout == Layout::kFloat16) {
    const Vector high = p[1];
    p[1] = Or(Or(And8(high, 3), And8(ShiftLeft16<5>(high), 0x80)),
              And8(ShiftLeft16<2>(p[2]), 31 << 2));
  } else if constexpr (layout == Layout::kFloat64) {
    const Vector high = p[6];
    const Vector biased =
        Or(And8(ShiftLeft16<4>(p[7]), 0xf0), And8(ShiftRight16<4>(p[8]), 15));
    const Vector exponent = And8(Add8(biased, Set8(896 >> 4)), 127);
    p[6] = Or(And8(high, 15), And8(ShiftLeft16<4>(p[8]), 0xf0));
    p[7] = Or(exponent, And8(ShiftLeft16<3>(high), 0x80));
  }
}

// Measured: with stores to the second-level cache in between, loads from there come late unless
// they are asked for this far ahead.
constexpr int64_t kAhead = 4096;

// A vector of each plane, of the words at `from` and each 64 bytes on, XORed with `other`.
template <Layout layout, bool kDelta>
inline void Cut(const uint8_t* from, const uint8_t* other, Vector* planes) {
  constexpr int kBytes = Info(layout).word_bytes;
  Vector words[kBytes];
  for (int b = 0; b < kBytes; ++b) {
    __builtin_prefetch(from + kAhead + 64 * b);
    words[b] = LoadVector(from + 64 * b);
    if constexpr (kDelta) words[b] = Xor(words[b], LoadVector(other + 64 * b));
    words[b] = Rotate<layout>(words[b]);
  }
  Deinterleave<kBytes>(words, planes);
  CutTop<layout>(planes);
}

// The inverse; `planes` are lost.
template <Layout layout, bool kDelta>
inline void Join(Vector* planes, uint8_t* to, const uint8_t* other) {
  constexpr int kBytes = Info(layout).word_bytes;
  Vector words[kBytes];
  JoinTop<layout>(planes);
  Interleave<kBytes>(planes, words);
  for (int b = 0; b < kBytes; ++b) {
    words[b] = RotateBack<layout>(words[b]);
    if constexpr (kDelta) words[b] = Xor(words[b], LoadVector(other + 64 * b));
    StoreVector(to + 64 * b, words[b]);
  }
}

template <Layout layout, bool kDelta>
inline void SplitGroups(const void* src, const void* ref, int64_t count, uint8_t* const* planes) {
  constexpr int kBytes = Info(layout).word_bytes, kPlanes = Info(layout).planes;
  auto* from = static_cast<const uint8_t*>(src);
  auto* other = static_cast<const uint8_t*>(ref);
  uint8_t* out[kPlanes];   // of our own: a store could alter `planes`, for all the compiler knows
  for (int p = 0; p < kPlanes; ++p) out[p] = planes[p];
  for (int64_t i = 0; i + 64 <= count; i += 64) {
    for (int part = 0; part < 64; part += kVectorBytes) {
      Vector cut[kPlanes];
      Cut<layout, kDelta>(from + i * kBytes + part, kDelta ? other + i * kBytes + part : nullptr,
                          cut);
      for (int p = 0; p < kPlanes; ++p) StoreVector(out[p] + i + part, cut[p]);
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
      Vector cut[kPlanes];
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

}  // namespace
}  // namespace jaxccomp::lossless
