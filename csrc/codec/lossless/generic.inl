// The loops in plain C++: all of kernels_generic.cc; the other tables use them for the last few words.
// Everything is in an unnamed namespace, so that the linker cannot use a function compiled for a newer
// processor on an older one.

#include <cstdint>

#include "codec/lossless/kernels.h"

namespace jaxccomp::lossless {
namespace {

// T at an unaligned address.
template <typename T>
struct InMemory {
  typedef T Type __attribute__((aligned(1), may_alias));
};

template <typename T>
inline T Load(const void* base, int64_t i = 0) {
  return static_cast<const typename InMemory<T>::Type*>(base)[i];
}

template <typename T>
inline void Store(void* base, T value, int64_t i = 0) {
  static_cast<typename InMemory<T>::Type*>(base)[i] = value;
}

template <int kBytes>
struct WordOf;
template <> struct WordOf<1> { using Type = uint8_t; };
template <> struct WordOf<2> { using Type = uint16_t; };
template <> struct WordOf<4> { using Type = uint32_t; };
template <> struct WordOf<8> { using Type = uint64_t; };

template <Layout layout>
using Word = typename WordOf<Info(layout).word_bytes>::Type;

// The bytes of `w` in the planes of `layout`, lowest plane first.
template <Layout layout>
inline void CutWord(uint64_t w, uint8_t* bytes) {
  constexpr int kTop = Info(layout).word_bytes - 2;
  for (int p = 0; p < Info(layout).word_bytes; ++p) bytes[p] = static_cast<uint8_t>(w >> (8 * p));
  if constexpr (layout == Layout::kBFloat16 || layout == Layout::kFloat32) {
    const unsigned top = static_cast<unsigned>(w >> (8 * kTop));
    bytes[kTop] = static_cast<uint8_t>(top << 1 | top >> 15);
    bytes[kTop + 1] = static_cast<uint8_t>(top >> 7);
  } else if constexpr (layout == Layout::kFloat16) {
    bytes[1] = static_cast<uint8_t>((w >> 8 & 3) | (w >> 13 & 4));
    bytes[2] = static_cast<uint8_t>(w >> 10 & 31);
  } else if constexpr (layout == Layout::kFloat64) {
    const uint64_t exponent = (w >> 52) - 896;
    bytes[6] = static_cast<uint8_t>((w >> 48 & 15) | (w >> 63 << 4));
    bytes[7] = static_cast<uint8_t>(exponent >> 8 & 7);
    bytes[8] = static_cast<uint8_t>(exponent);
  }
}

// The inverse of CutWord, for the bytes at `i` of the planes.
template <Layout layout>
inline uint64_t JoinWord(const uint8_t* const* planes, int64_t i) {
  constexpr int kTop = Info(layout).word_bytes - 2;
  constexpr bool kPlain = layout <= Layout::kBytes8;
  uint64_t w = 0;
  for (int p = 0; p < (kPlain ? kTop + 2 : kTop); ++p) {
    w |= static_cast<uint64_t>(planes[p][i]) << (8 * p);
  }
  if constexpr (layout == Layout::kBFloat16 || layout == Layout::kFloat32) {
    const unsigned low = planes[kTop][i], exponent = planes[kTop + 1][i];
    const uint64_t top = (low & 1) << 15 | exponent << 7 | low >> 1;
    w |= top << (8 * kTop);
  } else if constexpr (layout == Layout::kFloat16) {
    const unsigned high = planes[1][i], exponent = planes[2][i] & 31;
    w = planes[0][i] | (high & 3) << 8 | exponent << 10 | (high & 4) << 13;
  } else if constexpr (layout == Layout::kFloat64) {
    const uint64_t high = planes[6][i];
    const uint64_t exponent = ((planes[7][i] & 7u) << 8 | planes[8][i]) + 896u;
    w |= (high & 15) << 48 | (exponent & 2047) << 52 | (high >> 4 & 1) << 63;
  }
  return w;
}

// The position of each word's byte within its group's bytes of a plane: a group of 64 words is a matrix
// with rows of four lanes of 16 bytes, which is transposed.
struct Places {
  uint8_t of[64];
};

template <Layout layout>
constexpr Places MakePlaces() {
  constexpr int kLaneWords = 16 / Info(layout).word_bytes;
  Places places = {};
  for (int j = 0; j < 64; ++j) {
    places.of[j] = static_cast<uint8_t>(j / kLaneWords % 4 * 16 +
                                        j / (4 * kLaneWords) * kLaneWords + j % kLaneWords);
  }
  return places;
}

template <Layout layout>
inline constexpr Places kPlaces = MakePlaces<layout>();

// The position of word i in a plane of `count` bytes. A last, partial group keeps its order.
template <Layout layout>
inline int64_t PlaceOf(int64_t i, int64_t count) {
  const int64_t group = i & ~int64_t{63};
  return count - group < 64 ? i : group + kPlaces<layout>.of[i & 63];
}

template <Layout layout>
void SplitFrom(int64_t begin, const void* src, const void* ref, int64_t count,
               uint8_t* const* planes) {
  constexpr int kPlanes = Info(layout).planes;
  for (int64_t i = begin; i < count; ++i) {
    Word<layout> w = Load<Word<layout>>(src, i);
    if (ref != nullptr) w ^= Load<Word<layout>>(ref, i);
    uint8_t bytes[kPlanes];
    CutWord<layout>(w, bytes);
    const int64_t place = PlaceOf<layout>(i, count);
    for (int p = 0; p < kPlanes; ++p) planes[p][place] = bytes[p];
  }
}

template <Layout layout>
void MergeFrom(int64_t begin, void* dst, const void* ref, int64_t count,
               const uint8_t* const* planes) {
  for (int64_t i = begin; i < count; ++i) {
    auto w = static_cast<Word<layout>>(JoinWord<layout>(planes, PlaceOf<layout>(i, count)));
    if (ref != nullptr) w ^= Load<Word<layout>>(ref, i);
    Store(dst, w, i);
  }
}

// How often each byte occurs.
inline void CountEach(const uint8_t* in, int64_t count, uint16_t* counts) {
  // Four tables in turn: an increment waits for the previous increment of the same counter.
  uint16_t tables[4][256] = {};
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (int t = 0; t < 4; ++t) ++tables[t][in[i + t]];
  }
  for (; i < count; ++i) ++tables[0][in[i]];
  for (int b = 0; b < 256; ++b) {
    counts[b] = static_cast<uint16_t>(tables[0][b] + tables[1][b] + tables[2][b] + tables[3][b]);
  }
}

// The last, partial group of a bit plane takes as few bytes as possible. `bits` is padded: each piece
// is written as a full word, and the next one overwrites its end.
inline int64_t PieceBytes(int64_t count) { return (count + 7) >> 3; }

inline uint64_t LowBits(int64_t count) {
  return count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
}

}  // namespace
}  // namespace jaxccomp::lossless
