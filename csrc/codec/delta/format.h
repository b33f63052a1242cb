// Float words and constants of the codec "delta". The bytes: docs/wire_format_delta.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/dtype.h"

namespace jaxccomp::delta {

// A value's class depends on its reference's exponent: class 0 has the base exponent and all greater ones,
// class c has base - c, and the last class also all smaller exponents.
inline constexpr int kClasses = 16;
// Values of a granule: one 64-bit word of the map of changes.
inline constexpr int kGranule = 64;
// Slack entries of arrays: kernels read and write whole vectors.
inline constexpr int64_t kPad = 128;
// Blocks decode independently.
inline constexpr int64_t kBlockValues = 1 << 18;

template <typename W, int kMantissa, int kExponent>
struct FloatWord {
  using Word = W;
  static constexpr int kBits = 8 * sizeof(Word);
  static constexpr int kMantissaBits = kMantissa;
  static constexpr Word kSign = static_cast<Word>(Word{1} << (kBits - 1));
  static constexpr Word kRest = static_cast<Word>(~kSign);

  static int ExponentOf(Word word) { return (word >> kMantissa) & ((1 << kExponent) - 1); }
  static Word Load(const std::byte* at) {
    Word word;
    std::memcpy(&word, at, sizeof(word));
    return word;
  }
  static void Store(Word word, std::byte* at) { std::memcpy(at, &word, sizeof(word)); }

  // All ones for a negative value.
  static Word SignMask(Word word) {
    return static_cast<Word>(static_cast<std::make_signed_t<Word>>(word) >> (kBits - 1));
  }
  // Maps neighbouring values to neighbouring integers, also across zero. It is its own inverse.
  static Word Ordered(Word word) { return word ^ (SignMask(word) & kRest); }
  // The number of representable values from `ref` to `word`, positive away from zero; modulo 2^kBits.
  static Word Step(Word ref, Word word) {
    const Word s = SignMask(ref);
    return static_cast<Word>(((Ordered(word) - Ordered(ref)) ^ s) - s);
  }
  static Word Advance(Word ref, Word step) {
    const Word s = SignMask(ref);
    return Ordered(static_cast<Word>(Ordered(ref) + ((step ^ s) - s)));
  }
};

using BFloat16Word = FloatWord<uint16_t, 7, 8>;
using Float16Word = FloatWord<uint16_t, 10, 5>;
using Float32Word = FloatWord<uint32_t, 23, 8>;

template <typename F>
auto WithWord(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kBFloat16: return f(BFloat16Word{});
    case DType::kFloat16: return f(Float16Word{});
    default: return f(Float32Word{});
  }
}

inline int ClassOf(int exponent, int base) {
  const int below = base - exponent;
  return below < 0 ? 0 : below < kClasses ? below : kClasses - 1;
}

// The changes, in the order of values. Arrays have room for kPad more entries.
struct Changes {
  uint32_t* lengths = nullptr;   // of steps (FloatWord::Step)
  uint8_t* classes = nullptr;    // of their references
  uint64_t* away = nullptr;      // a bit per change: the step goes away from zero
};

}  // namespace jaxccomp::delta
