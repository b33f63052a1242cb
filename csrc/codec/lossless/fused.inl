// Splitting words and coding the last plane in one pass, with vectors of 64 bytes. A part of
// kernels.inl.

template <Layout layout, bool kDelta>
inline int64_t SplitEncodeGroups(const void* src, const void* ref, int64_t count,
                                 uint8_t* const* planes, const uint8_t* symbols, uint8_t* bits,
                                 uint8_t* escapes) {
  constexpr int kBytes = Info(layout).word_bytes, kLast = Info(layout).planes - 1;
  auto* from = static_cast<const uint8_t*>(src);
  auto* other = static_cast<const uint8_t*>(ref);
  uint8_t* out[kLast + 1];
  for (int p = 0; p < kLast; ++p) out[p] = planes[p];
  const Symbols<2> wanted(symbols);
  uint8_t* const first = escapes;
  for (int64_t i = 0; i < count; i += 64) {
    U8 cut[kLast + 1];
    Cut<layout, kDelta>(from, other, cut);
    for (int p = 0; p < kLast; ++p) Store(out[p] + i, cut[p]);
    const Codes codes = Classify(Bytes{{cut[kLast]}}, wanted, ~uint64_t{0});
    Store(bits, codes.low);
    Store(bits + 8, codes.high);
    bits += 16;
    escapes = Compress(cut[kLast], codes.escape, escapes);
    from += 64 * kBytes;
    if constexpr (kDelta) other += 64 * kBytes;
  }
  return escapes - first;
}

template <Layout layout>
int64_t SplitEncode(const void* src, const void* ref, int64_t count, uint8_t* const* planes,
                    const uint8_t* symbols, uint8_t* bits, uint8_t* escapes) {
  return ref == nullptr
             ? SplitEncodeGroups<layout, false>(src, ref, count, planes, symbols, bits, escapes)
             : SplitEncodeGroups<layout, true>(src, ref, count, planes, symbols, bits, escapes);
}

template <Layout layout, bool kDelta>
inline int64_t DecodeMergeGroups(void* dst, const void* ref, int64_t count,
                                 const uint8_t* const* planes, const uint8_t* symbols,
                                 const uint8_t* bits, const uint8_t* escapes) {
  constexpr int kBytes = Info(layout).word_bytes, kLast = Info(layout).planes - 1;
  auto* to = static_cast<uint8_t*>(dst);
  auto* other = static_cast<const uint8_t*>(ref);
  const uint8_t* in[kLast + 1];
  for (int p = 0; p < kLast; ++p) in[p] = planes[p];
  const Symbols<2> wanted(symbols);
  const uint8_t* const first = escapes;
  for (int64_t i = 0; i < count; i += 64) {
    const Codes codes = LoadCodes<2>(bits);
    bits += 16;
    U8 cut[kLast + 1];
    for (int p = 0; p < kLast; ++p) cut[p] = LoadOnce(in[p] + i);
    cut[kLast] = Decode(codes, wanted, escapes).part[0];
    escapes += CountBoth(codes.low, codes.high);
    Join<layout, kDelta>(cut, to, other);
    to += 64 * kBytes;
    if constexpr (kDelta) other += 64 * kBytes;
  }
  return escapes - first;
}

template <Layout layout>
int64_t DecodeMerge(void* dst, const void* ref, int64_t count, const uint8_t* const* planes,
                    const uint8_t* symbols, const uint8_t* bits, const uint8_t* escapes) {
  return ref == nullptr
             ? DecodeMergeGroups<layout, false>(dst, ref, count, planes, symbols, bits, escapes)
             : DecodeMergeGroups<layout, true>(dst, ref, count, planes, symbols, bits, escapes);
}
