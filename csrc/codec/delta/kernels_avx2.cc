// Kernels for x86 with AVX2.
#if defined(__x86_64__)
#include <immintrin.h>

#include <bit>

#include "codec/delta/generic.inl"
#include "codec/delta/lanes.inl"

namespace jaxccomp::delta {
namespace {

__m256i Load(const void* at) { return _mm256_loadu_si256(static_cast<const __m256i*>(at)); }
void Store(void* at, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(at), v); }

int64_t Map2(const std::byte* src, const std::byte* ref, int64_t count, uint64_t* map) {
  int64_t i = 0, changes = 0;
  const auto differ = [&](int64_t at) {   // of 32 values
    const __m256i low = _mm256_cmpeq_epi16(Load(src + 2 * at), Load(ref + 2 * at));
    const __m256i high = _mm256_cmpeq_epi16(Load(src + 2 * at + 32), Load(ref + 2 * at + 32));
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xd8);
    return static_cast<uint64_t>(~static_cast<uint32_t>(_mm256_movemask_epi8(packed)));
  };
  for (; i + 64 <= count; i += 64) {
    map[i / 64] = differ(i + 32) << 32 | differ(i);
    changes += std::popcount(map[i / 64]);
  }
  return changes + MapOf<uint16_t>(src + 2 * i, ref + 2 * i, count - i, map + i / 64);
}

int64_t Map4(const std::byte* src, const std::byte* ref, int64_t count, uint64_t* map) {
  int64_t i = 0, changes = 0;
  for (; i + 64 <= count; i += 64) {
    uint64_t same = 0;
    for (int k = 0; k < 8; ++k) {
      const __m256i equal =
          _mm256_cmpeq_epi32(Load(src + 4 * i + 32 * k), Load(ref + 4 * i + 32 * k));
      same |= static_cast<uint64_t>(_mm256_movemask_ps(_mm256_castsi256_ps(equal))) << (8 * k);
    }
    map[i / 64] = ~same;
    changes += std::popcount(~same);
  }
  return changes + MapOf<uint32_t>(src + 4 * i, ref + 4 * i, count - i, map + i / 64);
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

void Classes4(const std::byte* ref, int64_t count, int base, uint8_t* classes) {
  const __m256i exponents = _mm256_set1_epi32(255), bases = _mm256_set1_epi32(base);
  const __m256i most = _mm256_set1_epi32(kClasses - 1);
  const auto below = [&](const std::byte* at) {
    const __m256i exponent =
        _mm256_and_si256(_mm256_srli_epi32(Load(at), Float32Word::kMantissaBits), exponents);
    const __m256i difference = _mm256_sub_epi32(bases, exponent);
    return _mm256_min_epi32(_mm256_max_epi32(difference, _mm256_setzero_si256()), most);
  };
  // Packing goes by halves of 16 bytes.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const std::byte* const at = ref + 4 * i;
    const __m256i low = _mm256_packus_epi32(below(at), below(at + 32));
    const __m256i high = _mm256_packus_epi32(below(at + 64), below(at + 96));
    Store(classes + i, _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order));
  }
  ClassesOf<Float32Word>(ref + 4 * i, count - i, base, classes + i);
}

void Above(const uint8_t* numbers, int64_t count, int than, uint64_t* bits) {
  const __m256i least = _mm256_set1_epi8(static_cast<char>(than));
  const auto above = [&](const uint8_t* at) {   // numbers are below 128
    return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpgt_epi8(Load(at), least)));
  };
  int64_t i = 0;
  for (; i + 64 <= count; i += 64) {
    bits[i / 64] = uint64_t{above(numbers + i + 32)} << 32 | above(numbers + i);
  }
  AboveOf(numbers + i, count - i, than, bits + i / 64);
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

// For the lanes in a mask: the bytes of a shuffle that brings their words of 16 bits together, at the end of
// 8 or at the begin, and of one that brings words to them.
struct WordShuffles {
  alignas(16) uint8_t compress[256][16], to_begin[256][16], expand[256][16];
};
constexpr WordShuffles kWordShuffles = [] {
  WordShuffles made{};
  for (int mask = 0; mask < 256; ++mask) {
    int next = 0, place = 8 - std::popcount(static_cast<unsigned>(mask));
    for (auto* each : {&made.compress, &made.to_begin, &made.expand}) {
      for (uint8_t& byte : (*each)[mask]) byte = 0x80;
    }
    for (int lane = 0; lane < 8; ++lane) {
      if ((mask >> lane & 1) == 0) continue;
      for (int half = 0; half < 2; ++half) {
        made.compress[mask][2 * place + half] = static_cast<uint8_t>(2 * lane + half);
        made.to_begin[mask][2 * next + half] = static_cast<uint8_t>(2 * lane + half);
        made.expand[mask][2 * lane + half] = static_cast<uint8_t>(2 * next + half);
      }
      ++next;
      ++place;
    }
  }
  return made;
}();
__m128i ShuffleOf(const uint8_t (&of)[256][16], uint32_t mask) {
  return _mm_load_si128(reinterpret_cast<const __m128i*>(of[mask]));
}

__m128i Load128(const void* at) { return _mm_loadu_si128(static_cast<const __m128i*>(at)); }
__m128i Sign(__m128i v) { return _mm_srai_epi16(v, 15); }
__m128i Ordered(__m128i v) { return _mm_xor_si128(v, _mm_srli_epi16(Sign(v), 1)); }
// -v where the sign is all ones.
__m128i Signed(__m128i v, __m128i sign) { return _mm_sub_epi16(_mm_xor_si128(v, sign), sign); }

// Fewer than one in so many are faster one by one.
constexpr int64_t kManyFromOneIn = 24;
bool AreMany(const uint64_t* map, int64_t count) {
  int64_t changes = 0;
  for (int64_t i = 0; i < count; i += 64) changes += std::popcount(map[i / 64]);
  return changes * kManyFromOneIn >= count;
}

void Steps2(const std::byte* src, const std::byte* ref, const uint64_t* map, int64_t count,
            const Changes& changes) {
  if (!AreMany(map, count)) return Steps<BFloat16Word>(src, ref, map, count, changes);
  int64_t n = 0, i = 0;
  changes.away[0] = 0;
  for (; i + 64 <= count; i += 64) {
    int64_t at = 2 * i;
    for (uint64_t word = map[i / 64]; word != 0; word >>= 8, at += 16) {
      const auto some = static_cast<uint32_t>(word & 255);
      const __m128i b = Load128(ref + at);
      const __m128i difference = _mm_sub_epi16(Ordered(Load128(src + at)), Ordered(b));
      const __m128i step = _mm_shuffle_epi8(Signed(difference, Sign(b)),
                                            ShuffleOf(kWordShuffles.to_begin, some));
      const int found = std::popcount(some);
      const auto towards = static_cast<uint32_t>(
          _mm_movemask_epi8(_mm_packs_epi16(step, _mm_setzero_si128())));
      Append(changes.away, n, ~towards & ((uint32_t{1} << found) - 1));
      Store(changes.lengths + n, _mm256_cvtepu16_epi32(_mm_abs_epi16(step)));
      n += found;
    }
  }
  StepsFrom<BFloat16Word>(i, n, src, ref, map, count, changes);
}

void Advance2(std::byte* values, const uint64_t* map, int64_t count, const Changes& changes) {
  if (!AreMany(map, count)) return Advance<BFloat16Word>(values, map, count, changes);
  const __m128i each = _mm_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128), none = _mm_setzero_si128();
  const __m256i low = _mm256_set1_epi32(0xffff);
  int64_t n = 0, i = 0;
  for (; i + 64 <= count; i += 64) {
    std::byte* at = values + 2 * i;
    for (uint64_t word = map[i / 64]; word != 0; word >>= 8, at += 16) {
      const auto some = static_cast<uint32_t>(word & 255);
      const __m256i lengths = _mm256_and_si256(Load(changes.lengths + n), low);
      const __m128i length = _mm_packus_epi32(_mm256_castsi256_si128(lengths),
                                              _mm256_extracti128_si256(lengths, 1));
      const __m128i bits = _mm_set1_epi16(static_cast<int16_t>(BitsAt(changes.away, n) & 255));
      const __m128i away = _mm_cmpeq_epi16(_mm_and_si128(bits, each), each);
      const __m128i step = _mm_shuffle_epi8(
          _mm_blendv_epi8(_mm_sub_epi16(none, length), length, away),
          ShuffleOf(kWordShuffles.expand, some));
      const __m128i ref = Load128(at);
      const __m128i next = _mm_add_epi16(Ordered(ref), Signed(step, Sign(ref)));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(at), Ordered(next));
      n += std::popcount(some);
    }
  }
  AdvanceFrom<BFloat16Word>(i, n, values, map, count, changes);
}

void Count(const uint8_t* classes, int64_t count, uint32_t* counts) {
  uint32_t sums[kClasses] = {};
  int64_t first = 0;
  // As often as a byte can count; half of the classes at a time, for want of registers.
  while (count - first >= 32) {
    const int64_t times = std::min<int64_t>((count - first) / 32, 255);
    for (int c = 0; c < kClasses; c += 8) {
      __m256i found[8] = {};
      for (int64_t i = 0; i < times; ++i) {
        const __m256i v = Load(classes + first + 32 * i);
        for (int k = 0; k < 8; ++k) {
          found[k] = _mm256_sub_epi8(
              found[k], _mm256_cmpeq_epi8(v, _mm256_set1_epi8(static_cast<char>(c + k))));
        }
      }
      for (int k = 0; k < 8; ++k) {
        const __m256i sum = _mm256_sad_epu8(found[k], _mm256_setzero_si256());
        alignas(32) uint64_t parts[4];
        Store(parts, sum);
        sums[c + k] += static_cast<uint32_t>(parts[0] + parts[1] + parts[2] + parts[3]);
      }
    }
    first += 32 * times;
  }
  CountOf(classes + first, count - first, counts);
  for (int c = 0; c < kClasses; ++c) counts[c] += sums[c];
}

// The same for bytes, which are brought together at the begin.
struct ByteShuffles {
  alignas(8) uint8_t compress[256][8], expand[256][8];
};
constexpr ByteShuffles kByteShuffles = [] {
  ByteShuffles made{};
  for (int mask = 0; mask < 256; ++mask) {
    uint8_t next = 0;
    for (int byte = 0; byte < 8; ++byte) made.compress[mask][byte] = made.expand[mask][byte] = 0x80;
    for (int lane = 0; lane < 8; ++lane) {
      if ((mask >> lane & 1) == 0) continue;
      made.compress[mask][next] = static_cast<uint8_t>(lane);
      made.expand[mask][lane] = next++;
    }
  }
  return made;
}();
__m128i LoadEight(const uint8_t* at) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at));
}

int64_t Keep(const uint64_t* bits, const uint8_t* from, int64_t count, uint8_t* to) {
  int64_t n = 0;
  for (int64_t i = 0; i < count; i += 64) {
    uint64_t word = bits[i / 64];
    if (count - i < 64) word &= (uint64_t{1} << (count - i)) - 1;
    for (const uint8_t* at = from + i; word != 0; word >>= 8, at += 8) {
      const __m128i kept =
          _mm_shuffle_epi8(LoadEight(at), LoadEight(kByteShuffles.compress[word & 255]));
      _mm_storel_epi64(reinterpret_cast<__m128i*>(to + n), kept);
      n += std::popcount(word & 255);
    }
  }
  return n;
}

void Climb(const uint64_t* bits, const uint8_t* from, int64_t count, uint8_t* to) {
  const __m128i one = _mm_set1_epi8(1);
  for (int64_t i = 0; i < count; i += 8) {
    const uint64_t some = bits[i / 64] >> (i % 64) & 255;
    const __m128i shuffle = LoadEight(kByteShuffles.expand[some]);
    const __m128i next = _mm_shuffle_epi8(_mm_add_epi8(LoadEight(from), one), shuffle);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to + i), next);
    from += std::popcount(some);
  }
}

void Symbols(const uint32_t* lengths, int64_t count, uint8_t* symbols) {
  // As a float a length has its highest bit in the exponent and the next one behind it. The one below that
  // is cleared, so that nothing is rounded up to there.
  const __m256i least = _mm256_set1_epi32(255), none = _mm256_setzero_si256();
  for (int64_t i = 0; i < count; i += 8) {
    const __m256i length = Load(lengths + i);
    const __m256i exact = _mm256_andnot_si256(_mm256_srli_epi32(length, 2), length);
    const __m256i value = _mm256_castps_si256(_mm256_cvtepi32_ps(exact));
    // Without the sign that 2^31 has.
    const __m256i code = _mm256_srli_epi32(_mm256_slli_epi32(value, 1), 23);
    const __m256i symbol = _mm256_max_epi32(_mm256_sub_epi32(code, least), none);
    const __m256i words = _mm256_packus_epi32(symbol, symbol);
    const __m128i together =
        _mm_unpacklo_epi64(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(symbols + i), _mm_packus_epi16(together, together));
  }
}

__m256i PivotsOf(const uint8_t* pivots) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(pivots)));
}

void Split(const uint8_t* symbols, const uint8_t* classes, int64_t count, const uint8_t* pivots,
           uint8_t* differences, uint64_t* bits) {
  const __m256i table = PivotsOf(pivots);
  const auto split = [&](int64_t at) {   // 32 of them
    const __m256i pivot = _mm256_shuffle_epi8(table, Load(classes + at));
    const __m256i difference = _mm256_sub_epi8(Load(symbols + at), pivot);
    Store(differences + at, difference);
    return static_cast<uint64_t>(~static_cast<uint32_t>(_mm256_movemask_epi8(difference)));
  };
  int64_t i = 0;
  for (; i + 64 <= count; i += 64) bits[i / 64] = split(i + 32) << 32 | split(i);
  SplitOf(symbols + i, classes + i, count - i, pivots, differences + i, bits + i / 64);
}

void Join(const uint64_t* bits, const uint8_t* ups, const uint8_t* downs, const uint8_t* classes,
          const uint8_t* pivots, int64_t count, uint8_t* symbols) {
  const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(pivots));
  const __m128i all = _mm_set1_epi8(-1);
  for (int64_t i = 0; i < count; i += 8) {
    const uint64_t up = bits[i / 64] >> (i % 64) & 255, down = ~up & 255;
    // Where a shuffle has nothing it gives 0.
    const __m128i above = _mm_shuffle_epi8(LoadEight(ups), LoadEight(kByteShuffles.expand[up]));
    const __m128i below = _mm_shuffle_epi8(_mm_xor_si128(LoadEight(downs), all),
                                           LoadEight(kByteShuffles.expand[down]));
    const __m128i pivot = _mm_shuffle_epi8(table, LoadEight(classes + i));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(symbols + i),
                     _mm_add_epi8(pivot, _mm_or_si128(above, below)));
    ups += std::popcount(up);
    downs += std::popcount(down);
  }
}

// How many bits follow 8 symbols.
__m256i LowBits(__m256i symbols) {
  const __m256i one = _mm256_set1_epi32(1);
  const __m256i high = _mm256_srli_epi32(_mm256_add_epi32(symbols, one), 1);
  return _mm256_sub_epi32(_mm256_max_epi32(high, one), one);
}
__m256i SymbolsAt(const uint8_t* symbols) { return _mm256_cvtepu8_epi32(LoadEight(symbols)); }
// Four of them fit a word: as many as BitWriter::Put takes.
constexpr int kFewLowBits = 14;
bool AreFew(__m256i bits) {
  return _mm256_movemask_epi8(_mm256_cmpgt_epi32(bits, _mm256_set1_epi32(kFewLowBits))) == 0;
}

void PutLow(const uint32_t* lengths, const uint8_t* symbols, int64_t count, BitWriter* to) {
  const __m256i one = _mm256_set1_epi32(1), half = _mm256_set1_epi64x(0xffffffff);
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256i bits = LowBits(SymbolsAt(symbols + i));
    if (!AreFew(bits)) {
      PutLowOf(lengths + i, symbols + i, 8, to);
      continue;
    }
    const __m256i mask = _mm256_sub_epi32(_mm256_sllv_epi32(one, bits), one);
    const __m256i low = _mm256_and_si256(Load(lengths + i), mask);
    // Two to a word of 64 bits, then two of these.
    const __m256i first_bits = _mm256_and_si256(bits, half);
    const __m256i pairs = _mm256_or_si256(
        _mm256_and_si256(low, half), _mm256_sllv_epi64(_mm256_srli_epi64(low, 32), first_bits));
    const __m256i pair_bits = _mm256_add_epi64(first_bits, _mm256_srli_epi64(bits, 32));
    const __m256i fours = _mm256_or_si256(
        pairs, _mm256_sllv_epi64(_mm256_unpackhi_epi64(pairs, pairs), pair_bits));
    const __m256i four_bits =
        _mm256_add_epi64(pair_bits, _mm256_unpackhi_epi64(pair_bits, pair_bits));
    alignas(32) uint64_t words[4], counts[4];
    Store(words, fours);
    Store(counts, four_bits);
    for (int k = 0; k < 4; k += 2) to->Put(words[k], static_cast<int>(counts[k]));
  }
  PutLowOf(lengths + i, symbols + i, count - i, to);
}

void TakeLow(const uint8_t* symbols, int64_t count, BitReader* from, uint32_t* lengths) {
  const __m256i one = _mm256_set1_epi32(1), seven = _mm256_set1_epi32(7);
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256i symbol = SymbolsAt(symbols + i), bits = LowBits(symbol);
    // The bits up to each, in halves of four, and those of the first half behind it.
    __m256i upto = _mm256_add_epi32(bits, _mm256_slli_si256(bits, 4));
    upto = _mm256_add_epi32(upto, _mm256_slli_si256(upto, 8));
    const __m256i first = _mm256_permutevar8x32_epi32(upto, _mm256_set1_epi32(3));
    upto = _mm256_add_epi32(upto, _mm256_blend_epi32(_mm256_setzero_si256(), first, 0xf0));
    const int all = _mm256_extract_epi32(upto, 7);
    if (!AreFew(bits) || !from->Has(all)) {
      TakeLowOf(symbols + i, 8, from, lengths + i);
      continue;
    }
    const __m256i at = _mm256_add_epi32(_mm256_sub_epi32(upto, bits),
                                        _mm256_set1_epi32(from->skipped()));
    const __m256i words = _mm256_i32gather_epi32(reinterpret_cast<const int*>(from->at()),
                                                 _mm256_srli_epi32(at, 3), 1);
    const __m256i mask = _mm256_sub_epi32(_mm256_sllv_epi32(one, bits), one);
    const __m256i low =
        _mm256_and_si256(_mm256_srlv_epi32(words, _mm256_and_si256(at, seven)), mask);
    // The highest bit and the one below; nothing is below 1.
    const __m256i even = _mm256_andnot_si256(symbol, one);
    const __m256i high = _mm256_or_si256(even, _mm256_set1_epi32(2));
    const __m256i is_one = _mm256_cmpeq_epi32(symbol, _mm256_setzero_si256());
    const __m256i least = _mm256_blendv_epi8(_mm256_sllv_epi32(high, bits), one, is_one);
    Store(lengths + i, _mm256_add_epi32(least, low));
    from->Skip(all);
  }
  TakeLowOf(symbols + i, count - i, from, lengths + i);
}

// Lanes whose bit is set, as a mask of all bits.
__m256i MaskOf(uint32_t bits) {
  const __m256i each = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), each),
                            each);
}
uint32_t BitsOf(__m256i mask) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(mask)));
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

struct Lanes8 {
  static constexpr int kWidth = 8;
  struct Tables {
    explicit Tables(const LaneModel& model)
        : zero(model.zero),
          reciprocal_zero(model.reciprocal),
          reciprocal_one(model.reciprocal + 16),
          shift_zero(model.shift),
          shift_one(model.shift + 16) {}
    Sixteen zero, reciprocal_zero, reciprocal_one, shift_zero, shift_one;
  };
  using Zero = Sixteen;

  void Load(const uint32_t* states) { state = delta::Load(states); }
  void Store(uint32_t* states) const { delta::Store(states, state); }

  static __m256i ClassesAt(const uint8_t* classes) {
    return _mm256_cvtepu8_epi32(LoadEight(classes));
  }
  static __m256i Divide(__m256i x, __m256i reciprocal, __m256i shift) {
    const __m256i even = _mm256_srli_epi64(_mm256_mul_epu32(x, reciprocal), 32);
    const __m256i odd =
        _mm256_mul_epu32(_mm256_srli_epi64(x, 32), _mm256_srli_epi64(reciprocal, 32));
    return _mm256_srlv_epi32(_mm256_blend_epi32(even, odd, 0xaa), shift);
  }

  template <bool kAll>
  std::byte* Encode(uint32_t one_bits, const uint8_t* classes, const Tables& t, uint32_t lane_bits,
                    std::byte* end) {
    const __m256i all = _mm256_set1_epi32(kLaneScale);
    const __m256i ones = MaskOf(one_bits), lanes = MaskOf(lane_bits);
    const __m256i c = ClassesAt(classes);
    const __m256i zero = t.zero.At(c);
    const __m256i size = _mm256_blendv_epi8(zero, _mm256_sub_epi32(all, zero), ones);
    // Whether it is less than size << 16.
    const __m256i fits = _mm256_cmpgt_epi32(size, _mm256_srli_epi32(state, 16));
    const uint32_t full_bits = ~BitsOf(fits) & lane_bits;
    const int words = std::popcount(full_bits);
    const __m256i low16 = _mm256_and_si256(state, _mm256_set1_epi32(0xffff));
    const __m128i packed =
        _mm_packus_epi32(_mm256_castsi256_si128(low16), _mm256_extracti128_si256(low16, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(end - 16),
                     _mm_shuffle_epi8(packed, ShuffleOf(kWordShuffles.compress, full_bits)));
    // Lanes without a bit keep their state in any case.
    const __m256i x = _mm256_blendv_epi8(_mm256_srli_epi32(state, 16), state, fits);
    const __m256i reciprocal =
        _mm256_blendv_epi8(t.reciprocal_zero.At(c), t.reciprocal_one.At(c), ones);
    const __m256i shift = _mm256_blendv_epi8(t.shift_zero.At(c), t.shift_one.At(c), ones);
    const __m256i quotient = Divide(x, reciprocal, shift);
    // x + quotient * (all - size); a 1 comes behind the other part, which is as great.
    const __m256i next = _mm256_add_epi32(
        x, _mm256_mullo_epi32(_mm256_sub_epi32(quotient, ones), _mm256_sub_epi32(all, size)));
    state = kAll ? next : _mm256_blendv_epi8(state, next, lanes);
    return end - 2 * words;
  }

  template <bool kAll>
  uint32_t Decode(const uint8_t* classes, const Zero& zero_of, uint32_t lane_bits,
                  const std::byte** at) {
    const __m256i all = _mm256_set1_epi32(kLaneScale);
    const __m256i zero = zero_of.At(ClassesAt(classes));
    const __m256i slot = _mm256_and_si256(state, _mm256_set1_epi32(kLaneScale - 1));
    const __m256i zeros = _mm256_cmpgt_epi32(zero, slot);
    const __m256i size = _mm256_blendv_epi8(_mm256_sub_epi32(all, zero), zero, zeros);
    const __m256i start = _mm256_andnot_si256(zeros, zero);
    __m256i next = _mm256_add_epi32(_mm256_mullo_epi32(size, _mm256_srli_epi32(state, kLaneBits)),
                                    _mm256_sub_epi32(slot, start));
    __m256i empty = _mm256_cmpgt_epi32(_mm256_set1_epi32(kLeastLaneState), next);
    const __m256i lanes = MaskOf(lane_bits);
    if constexpr (!kAll) empty = _mm256_and_si256(empty, lanes);
    const uint32_t empty_bits = BitsOf(empty);
    const __m128i words = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(*at)),
                                           ShuffleOf(kWordShuffles.expand, empty_bits));
    const __m256i filled =
        _mm256_or_si256(_mm256_slli_epi32(next, 16), _mm256_cvtepu16_epi32(words));
    next = _mm256_blendv_epi8(next, filled, empty);
    *at += 2 * std::popcount(empty_bits);
    state = kAll ? next : _mm256_blendv_epi8(state, next, lanes);
    return ~BitsOf(zeros) & lane_bits;
  }

  __m256i state;
};

}  // namespace

extern const Kernels kAvx2Kernels;
const Kernels kAvx2Kernels = {
    .name = "avx2",
    .map2 = Map2,
    .map4 = Map4,
    .bfloat16_classes = Classes2<BFloat16Word>,
    .float16_classes = Classes2<Float16Word>,
    .float32_classes = Classes4,
    .steps2 = Steps2,
    .steps4 = Steps<Float32Word>,
    .advance2 = Advance2,
    .advance4 = Advance<Float32Word>,
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
    .encode_few = EncodeLanesBy<Lanes8, kFewLanes>,
    .encode_most = EncodeLanesBy<Lanes8, kMostLanes>,
    .decode_few = DecodeLanesBy<Lanes8, kFewLanes>,
    .decode_most = DecodeLanesBy<Lanes8, kMostLanes>};

}  // namespace jaxccomp::delta
#endif
