// The kernels of an instruction set with vectors (codec/vectors.inl). Before including it, define JAXCCOMP_KERNELS
// (the variable to define) and JAXCCOMP_KERNELS_NAME.
#include <bit>

#include "codec/delta/generic.inl"
#include "codec/vectors.inl"

namespace jaxccomp::delta {
namespace {

using namespace vectors;

// The lowest `count` bits.
uint64_t UpTo(int64_t count, uint64_t bits) {
  return count < 64 ? bits & ((uint64_t{1} << count) - 1) : bits;
}
void ClearBehind(int64_t count, uint64_t* bits) {
  if (count % 64 != 0) bits[count / 64] = UpTo(count % 64, bits[count / 64]);
}

template <typename Word>
int64_t Map(const std::byte* src, const std::byte* ref, int64_t count, uint64_t* map) {
  using V = typename VectorOf<Word>::Type;
  int64_t i = 0, changes = 0;
  for (; i + 64 <= count; i += 64) {
    const auto at = i * static_cast<int64_t>(sizeof(Word));
    map[i / 64] = ~Bits64<Word>([&](int k) {
      return Equal(Load<V>(src + at + k * kVectorBytes), Load<V>(ref + at + k * kVectorBytes));
    });
    changes += std::popcount(map[i / 64]);
  }
  const auto at = i * static_cast<int64_t>(sizeof(Word));
  return changes + MapOf<Word>(src + at, ref + at, count - i, map + i / 64);
}

template <typename F>
void Classes(const std::byte* ref, int64_t count, int base, uint8_t* classes) {
  using Word = typename F::Word;
  using V = typename VectorOf<Word>::Type;
  const V exponents = Fill<V>(F::kRest >> F::kMantissaBits);
  const V bases = Fill<V>(static_cast<Word>(base)), maximum = Fill<V>(kClasses - 1);
  int64_t i = 0;
  for (; i + 64 <= count; i += 64) {
    StoreNarrow<Word>(classes + i, [&](int k) {
      const V exponent =
          Load<V>(ref + i * static_cast<int64_t>(sizeof(Word)) + k * kVectorBytes) >>
              F::kMantissaBits & exponents;
      return Min(bases - Min(exponent, bases), maximum);
    });
  }
  ClassesOf<F>(ref + i * static_cast<int64_t>(sizeof(Word)), count - i, base, classes + i);
}

void Above(const uint8_t* numbers, int64_t count, int than, uint64_t* bits) {
  const U8 minimum = Fill<U8>(static_cast<uint8_t>(than));
  for (int64_t i = 0; i < count; i += 64) {
    const Bytes v = LoadBytes(numbers + i);   // below 128
    bits[i / 64] = Bits64<uint8_t>([&](int k) { return Greater(v.part[k], minimum); });
  }
  ClearBehind(count, bits);
}

void Sums(const uint8_t* classes, int64_t count, const uint16_t* weights, uint32_t* sums) {
  uint8_t low[16], high[16];
  for (int c = 0; c < 16; ++c) {
    low[c] = static_cast<uint8_t>(weights[c]);
    high[c] = static_cast<uint8_t>(weights[c] >> 8);
  }
  const U8 lows = TableOf(low), highs = TableOf(high);
  int64_t i = 0;
  for (; i + 64 <= count; i += 64) {
    const Bytes v = LoadBytes(classes + i);
    U64 sum{};
    for (const U8 c : v.part) {
      sum += SumsOfEight(LookUp(lows, c)) + (SumsOfEight(LookUp(highs, c)) << 8);
    }
    sums[i / 64] = static_cast<uint32_t>(Sum(sum));
  }
  SumsOf(classes + i, count - i, weights, sums + i / 64);
}

// With vectors of at most 8 lanes, a scalar loop is faster for fewer than one change in this many values.
constexpr int64_t kManyFromOneIn = 24;
template <typename V>
bool AreMany(const uint64_t* map, int64_t count) {
  if (kLanesOf<V> > 8) return true;
  int64_t changes = 0;
  for (int64_t i = 0; i < count; i += 64) changes += std::popcount(map[i / 64]);
  return changes * kManyFromOneIn >= count;
}

// FloatWord's functions for vectors.
template <typename V>
V SignMask(V v) { return V(Signed<V>(v) >> (8 * sizeof(Lane<V>) - 1)); }
template <typename V>
V Ordered(V v) { return v ^ SignMask(v) >> 1; }
// -v where the sign is all ones.
template <typename V>
V Turned(V v, V sign) { return (v ^ sign) - sign; }

inline void StoreLengths(uint32_t* to, U32 v) { Store(to, v); }
inline void StoreLengths(uint32_t* to, Words16 v) { StoreWide(to, v); }
inline U32 LoadLengths(const uint32_t* from, U32) { return Load<U32>(from); }
inline Words16 LoadLengths(const uint32_t* from, Words16 v) { return LoadWide(from, v); }

template <typename V, typename F>
void StepsBy(const std::byte* src, const std::byte* ref, const uint64_t* map, int64_t count,
             const Changes& changes) {
  if (!AreMany<V>(map, count)) return Steps<F>(src, ref, map, count, changes);
  int64_t n = 0, i = 0;
  changes.away[0] = 0;
  for (; i + 64 <= count; i += 64) {
    auto at = i * static_cast<int64_t>(sizeof(Lane<V>));
    for (uint64_t some = map[i / 64]; some != 0; some >>= kLanesOf<V>, at += sizeof(V)) {
      const V b = Load<V>(ref + at), difference = Ordered(Load<V>(src + at)) - Ordered(b);
      const V step = Compress(Turned(difference, SignMask(b)), some);
      const int found = std::popcount(some & ((uint64_t{1} << kLanesOf<V>) - 1));
      Append(changes.away, n, ~uint64_t{BitsOf(Negative(step))} & ((uint64_t{1} << found) - 1));
      StoreLengths(changes.lengths + n, Min(step, -step));
      n += found;
    }
  }
  StepsFrom<F>(i, n, src, ref, map, count, changes);
}

template <typename V, typename F>
void AdvanceBy(std::byte* values, const uint64_t* map, int64_t count, const Changes& changes) {
  if (!AreMany<V>(map, count)) return Advance<F>(values, map, count, changes);
  int64_t n = 0, i = 0;
  for (; i + 64 <= count; i += 64) {
    std::byte* at = values + i * static_cast<int64_t>(sizeof(Lane<V>));
    for (uint64_t some = map[i / 64]; some != 0; some >>= kLanesOf<V>, at += sizeof(V)) {
      const V length = LoadLengths(changes.lengths + n, V{});
      const Mask<V> towards = MaskOf<V>(~BitsAt(changes.away, n));
      const V step = Expand(Select(towards, -length, length), some);
      const V ref = Load<V>(at);
      Store(at, Ordered(Ordered(ref) + Turned(step, SignMask(ref))));
      n += std::popcount(some & ((uint64_t{1} << kLanesOf<V>) - 1));
    }
  }
  AdvanceFrom<F>(i, n, values, map, count, changes);
}

void Count(const uint8_t* classes, int64_t count, uint32_t* counts) {
  // Classes at a time: limited by the number of registers.
  constexpr int kTogether = kVectorBytes / 4;
  uint32_t sums[kClasses] = {};
  int64_t first = 0;
  while (count - first >= kVectorBytes) {
    // At most 255: counters are bytes.
    const int64_t times = (count - first) / kVectorBytes < 255 ? (count - first) / kVectorBytes : 255;
    for (int c = 0; c < kClasses; c += kTogether) {
      U8 found[kTogether] = {};
      for (int64_t i = 0; i < times; ++i) {
        const U8 v = Load<U8>(classes + first + kVectorBytes * i);
        for (int k = 0; k < kTogether; ++k) {
          found[k] = CountUp(found[k], Equal(v, Fill<U8>(static_cast<uint8_t>(c + k))));
        }
      }
      for (int k = 0; k < kTogether; ++k) {
        sums[c + k] += static_cast<uint32_t>(Sum(SumsOfEight(found[k])));
      }
    }
    first += kVectorBytes * times;
  }
  CountOf(classes + first, count - first, counts);
  for (int c = 0; c < kClasses; ++c) counts[c] += sums[c];
}

int64_t Keep(const uint64_t* bits, const uint8_t* from, int64_t count, uint8_t* to) {
  uint8_t* const begin = to;
  for (int64_t i = 0; i < count; i += 64) {
    to = Compress(from + i, UpTo(count - i, bits[i / 64]), to);
  }
  return to - begin;
}

void Climb(const uint64_t* bits, const uint8_t* from, int64_t count, uint8_t* to) {
  for (int64_t i = 0; i < count; i += 64) {
    const uint64_t some = bits[i / 64];
    StoreBytes(to + i, CountUp(Expand(some, from), SpreadOf(some)));
    from += std::popcount(some);
  }
}

void Symbols(const uint32_t* lengths, int64_t count, uint8_t* symbols) {
  // Converted to float, a length has its highest bit in the exponent and the next one at the mantissa's top. The
  // third bit is cleared, so that rounding cannot reach them.
  for (int64_t i = 0; i < count; i += 64) {
    StoreNarrow<uint32_t>(symbols + i, [&](int k) {
      const U32 length = Load<U32>(lengths + i + k * kLanesOf<U32>);
      // << 1 removes the sign, which 2^31 has.
      const U32 code = FloatBits(length & ~(length >> 2)) << 1 >> 23;
      return code - Min(code, Fill<U32>(255));
    });
  }
}

void Split(const uint8_t* symbols, const uint8_t* classes, int64_t count, const uint8_t* pivots,
           uint8_t* differences, uint64_t* bits) {
  const U8 table = TableOf(pivots);
  for (int64_t i = 0; i < count; i += 64) {
    Bytes v = LoadBytes(symbols + i);
    const Bytes c = LoadBytes(classes + i);
    for (int k = 0; k < kParts; ++k) v.part[k] -= LookUp(table, c.part[k]);
    StoreBytes(differences + i, v);
    bits[i / 64] = ~Bits64<uint8_t>([&](int k) { return Negative(v.part[k]); });
  }
  ClearBehind(count, bits);
}

void Join(const uint64_t* bits, const uint8_t* ups, const uint8_t* downs, const uint8_t* classes,
          const uint8_t* pivots, int64_t count, uint8_t* symbols) {
  const U8 table = TableOf(pivots);
  for (int64_t i = 0; i < count; i += 64) {
    const uint64_t up = bits[i / 64];
    const Bytes c = LoadBytes(classes + i);
    Bytes sides = Expand(~up, downs);
    for (U8& part : sides.part) part = ~part;
    sides = ExpandInto(sides, SpreadOf(up), up, ups);
    for (int k = 0; k < kParts; ++k) sides.part[k] += LookUp(table, c.part[k]);
    StoreBytes(symbols + i, sides);
    ups += std::popcount(up);
    downs += 64 - std::popcount(up);
  }
}

// The number of low bits that follow each symbol.
U32 LowBits(U32 symbols) {
  const U32 high = (symbols + 1) >> 1;
  return high - Min(high, Fill<U32>(1));
}
// Whether four of them fit BitWriter::Put (56 bits).
bool AreFew(U32 bits) { return BitsOf(Greater(bits, Fill<U32>(14))) == 0; }

void PutLow(const uint32_t* lengths, const uint8_t* symbols, int64_t count, BitWriter* to) {
  int64_t i = 0;
  for (; i + kLanesOf<U32> <= count; i += kLanesOf<U32>) {
    const U32 bits = LowBits(Widen(symbols + i));
    if (!AreFew(bits)) {
      PutLowOf(lengths + i, symbols + i, kLanesOf<U32>, to);
      continue;
    }
    const U64 low = U64(Load<U32>(lengths + i) & ((Fill<U32>(1) << bits) - 1));
    // Two to a word of 64 bits, then two such words to one.
    const U64 half = Fill<U64>(0xffffffff), first_bits = U64(bits) & half;
    const U64 pairs = (low & half) | low >> 32 << first_bits;
    const U64 pair_bits = first_bits + (U64(bits) >> 32);
    const U64 fours = pairs | UnpackHigh64(pairs, pairs) << pair_bits;
    const U64 four_bits = pair_bits + UnpackHigh64(pair_bits, pair_bits);
    for (int k = 0; k < kLanesOf<U64>; k += 2) to->Put(fours[k], static_cast<int>(four_bits[k]));
  }
  PutLowOf(lengths + i, symbols + i, count - i, to);
}

void TakeLow(const uint8_t* symbols, int64_t count, BitReader* from, uint32_t* lengths) {
  int64_t i = 0;
  for (; i + kLanesOf<U32> <= count; i += kLanesOf<U32>) {
    const U32 symbol = Widen(symbols + i), bits = LowBits(symbol), upto = PrefixSums(bits);
    const auto all = static_cast<int>(upto[kLanesOf<U32> - 1]);
    if (!AreFew(bits) || !from->Has(all)) {
      TakeLowOf(symbols + i, kLanesOf<U32>, from, lengths + i);
      continue;
    }
    const U32 at = upto - bits + static_cast<uint32_t>(from->skipped());
    const U32 low = Gather(from->at(), at >> 3) >> (at & 7) & ((Fill<U32>(1) << bits) - 1);
    // The symbol's two top bits, shifted; symbol 0 is the length 1.
    const U32 one = Fill<U32>(1), minimum = ((~symbol & one) | 2) << bits;
    Store(lengths + i, Select(Equal(symbol, U32{}), one, minimum) + low);
    from->Skip(all);
  }
  TakeLowOf(symbols + i, count - i, from, lengths + i);
}

#include "codec/delta/lanes.inl"

}  // namespace

extern const Kernels JAXCCOMP_KERNELS;
const Kernels JAXCCOMP_KERNELS = {
    .name = JAXCCOMP_KERNELS_NAME,
    .map2 = Map<uint16_t>,
    .map4 = Map<uint32_t>,
    .bfloat16_classes = Classes<BFloat16Word>,
    .float16_classes = Classes<Float16Word>,
    .float32_classes = Classes<Float32Word>,
    .steps2 = StepsBy<Words16, BFloat16Word>,
    .steps4 = StepsBy<Words32, Float32Word>,
    .advance2 = AdvanceBy<Words16, BFloat16Word>,
    .advance4 = AdvanceBy<Words32, Float32Word>,
    .sums = Sums,
    .count = Count,
    .symbols = Symbols,
    .above = Above,
    .keep = Keep,
    .climb = Climb,
    .split = Split,
    .join = Join,
    .put_low = PutLow,
    .take_low = TakeLow,
    .encode_few = EncodeLanesBy<kFewLanes>,
    .encode_max = EncodeLanesBy<kMaxLanes>,
    .decode_few = DecodeLanesBy<kFewLanes>,
    .decode_max = DecodeLanesBy<kMaxLanes>};

}  // namespace jaxccomp::delta
