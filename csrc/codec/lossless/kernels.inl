// The kernels of an instruction set with vectors (codec/vectors.inl). Before including it, define JAXCCOMP_KERNELS
// (the variable to define) and JAXCCOMP_KERNELS_NAME, and JAXCCOMP_LOSSLESS_FUSED for the fused kernels.
#include "codec/lossless/generic.inl"
#include "codec/vectors.inl"

namespace jaxccomp::lossless {
namespace {

using namespace vectors;

#include "codec/lossless/planes.inl"

template <int kCodeBits>
struct Symbols {
  static constexpr int kCount = kCodeBits == 2 ? 3 : 1;
  explicit Symbols(const uint8_t* symbols) {
    for (int s = 0; s < kCount; ++s) of[s] = Fill<U8>(symbols[s]);
  }
  U8 of[kCount];
};

// A bit for each of 64 bytes.
struct Codes {
  uint64_t low, high, escape;
};

template <int kCodeBits>
inline Codes Classify(const Bytes& v, const Symbols<kCodeBits>& symbols, uint64_t valid) {
  const uint64_t other = NotEqual(v, symbols.of[0], valid);
  if constexpr (kCodeBits == 1) {
    return {other, 0, other};
  } else {
    const uint64_t low = NotEqual(v, symbols.of[2], other);
    const uint64_t high = NotEqual(v, symbols.of[1], other);
    return {low, high, AndMasks(low, high)};
  }
}

template <int kCodeBits>
int64_t EncodeLevel(const uint8_t* in, int64_t count, const uint8_t* symbols, uint8_t* bits,
                    uint8_t* escapes) {
  const Symbols<kCodeBits> wanted(symbols);
  uint8_t* const first = escapes;
  const auto encode = [&](const uint8_t* from, uint64_t valid, int64_t piece_bytes) {
    const Codes codes = Classify(LoadBytes(from), wanted, valid);
    escapes = Compress(from, codes.escape, escapes);
    Store(bits, codes.low);
    if (kCodeBits == 2) Store(bits + piece_bytes, codes.high);
    bits += kCodeBits * piece_bytes;
  };
  int64_t i = 0;
#pragma GCC unroll 4
  for (; i + 64 <= count; i += 64) encode(in + i, ~uint64_t{0}, 8);
  if (i < count) encode(in + i, LowBits(count - i), PieceBytes(count - i));
  return escapes - first;
}

template <int kCodeBits>
inline Codes CodesOf(uint64_t low, uint64_t high) {
  if constexpr (kCodeBits == 1) return {low, low, low};
  return {low, high, AndMasks(low, high)};
}
template <int kCodeBits>
inline Codes LoadCodes(const uint8_t* bits) {
  const uint64_t low = LoadMask(bits);
  return CodesOf<kCodeBits>(low, kCodeBits == 2 ? LoadMask(bits + 8) : low);
}

template <int kCodeBits>
inline Bytes Decode(Codes codes, const Symbols<kCodeBits>& symbols, const uint8_t* escapes) {
  Bytes v;
  for (U8& part : v.part) part = symbols.of[0];
  Mask64 escape = SpreadOf(codes.low);
  if constexpr (kCodeBits == 2) {
    const Mask64 high = SpreadOf(codes.high);
    for (int k = 0; k < kParts; ++k) {
      v.part[k] = Select(escape.part[k], symbols.of[1], v.part[k]);
      v.part[k] = Select(high.part[k], symbols.of[2], v.part[k]);
    }
    escape = And(escape, high);
  }
  return ExpandInto(v, escape, codes.escape, escapes);
}

template <int kCodeBits>
int64_t DecodeLevel(const uint8_t* bits, int64_t count, const uint8_t* symbols,
                    const uint8_t* escapes, uint8_t* out) {
  const Symbols<kCodeBits> wanted(symbols);
  const uint8_t* const first = escapes;
  int64_t i = 0;
#pragma GCC unroll 4
  for (; i + 64 <= count; i += 64) {
    const Codes codes = LoadCodes<kCodeBits>(bits);
    bits += 8 * kCodeBits;
    StoreBytes(out + i, Decode(codes, wanted, escapes));
    escapes += CountBoth(codes.low, codes.high);
  }
  if (i < count) {
    const uint64_t valid = LowBits(count - i), low = Load<uint64_t>(bits) & valid;
    const Codes codes = CodesOf<kCodeBits>(low, Load<uint64_t>(bits + PieceBytes(count - i)) & valid);
    StoreBytes(out + i, Decode(codes, wanted, escapes));
    escapes += std::popcount(codes.escape);
  }
  return escapes - first;
}

#if defined(JAXCCOMP_LOSSLESS_FUSED)
#include "codec/lossless/fused.inl"
#endif

// The greatest byte; `count` is a multiple of 64.
inline int Greatest(const uint8_t* in, int64_t count) {
  U8 maximum{};
  for (int64_t i = 0; i < count; i += kVectorBytes) {
    const U8 v = Load<U8>(in + i);
    maximum = v > maximum ? v : maximum;
  }
  uint8_t greatest = 0;
  for (int k = 0; k < kVectorBytes; ++k) greatest = maximum[k] > greatest ? maximum[k] : greatest;
  return greatest;
}

inline int CountOf(const uint8_t* in, int64_t count, int byte) {
  const U8 wanted = Fill<U8>(static_cast<uint8_t>(byte));
  int64_t others = 0;
  for (int64_t i = 0; i < count; i += 64) {
    others += std::popcount(NotEqual(LoadBytes(in + i), wanted, ~uint64_t{0}));
  }
  return static_cast<int>(count - others);
}

// Bytes of exponents are 0 or close to the greatest one. With long vectors, these bytes are counted by compares,
// the others by a table of counters.
void Histogram(const uint8_t* in, int64_t count, uint16_t* counts) {
  if (kVectorBytes < 64) return CountEach(in, count, counts);
  constexpr int kTries = 40;
  const int64_t whole = count & ~int64_t{63};
  for (int b = 0; b < 256; ++b) counts[b] = 0;
  const int zeros = CountOf(in, whole, 0);
  counts[0] = static_cast<uint16_t>(zeros);
  int64_t left = whole - zeros;
  const int maximum = Greatest(in, whole);
  for (int byte = maximum; byte > 0 && byte > maximum - kTries && left > 0; --byte) {
    const int found = CountOf(in, whole, byte);
    counts[byte] = static_cast<uint16_t>(found);
    left -= found;
  }
  if (left > 0) CountEach(in, whole, counts);
  for (int64_t i = whole; i < count; ++i) ++counts[in[i]];
}

// The width is a compile-time constant, so that the vectors stay in registers.
template <int kWidth>
void PackWidth(const uint8_t* in, int64_t count, uint8_t* bits) {
  for (int64_t i = 0; i < count; i += 64) {
    const Bytes v = LoadBytes(in + i);
    const int64_t piece_bytes = count - i < 64 ? PieceBytes(count - i) : 8;
    for (int b = 0; b < kWidth; ++b) {
      // Moves bit b to the top of each byte. The shift also moves bits in from the byte below, but not to the top.
      const auto shifted = [&](int k) { return Negative(U8(U16(v.part[k]) << (7 - b))); };
      Store(bits, Bits64<uint8_t>(shifted) & LowBits(count - i));
      bits += piece_bytes;
    }
  }
}

template <int kWidth>
void UnpackWidth(const uint8_t* bits, int64_t count, uint8_t* out) {
  for (int64_t i = 0; i < count; i += 64) {
    const int64_t piece_bytes = count - i < 64 ? PieceBytes(count - i) : 8;
    Bytes v{};
    for (int b = 0; b < kWidth; ++b) {
      const Mask64 set = SpreadOf(LoadMask(bits));
      const U8 bit = Fill<U8>(1 << b);
      for (int k = 0; k < kParts; ++k) v.part[k] = Select(set.part[k], v.part[k] + bit, v.part[k]);
      bits += piece_bytes;
    }
    StoreBytes(out + i, v);
  }
}

void Pack(const uint8_t* in, int64_t count, int width, uint8_t* bits) {
  switch (width) {
    case 3: return PackWidth<3>(in, count, bits);
    case 5: return PackWidth<5>(in, count, bits);
    default: return PackWidth<8>(in, count, bits);
  }
}

void Unpack(const uint8_t* bits, int64_t count, int width, uint8_t* out) {
  switch (width) {
    case 3: return UnpackWidth<3>(bits, count, out);
    case 5: return UnpackWidth<5>(bits, count, out);
    default: return UnpackWidth<8>(bits, count, out);
  }
}

}  // namespace

#include "codec/lossless/table.inl"

}  // namespace jaxccomp::lossless
