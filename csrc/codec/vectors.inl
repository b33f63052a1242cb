// Vectors of the instruction set for which the including file is compiled: AVX2, or AVX-512 with VBMI and VBMI2.
// Kernels are written once, with these vectors. Everything is in an unnamed namespace, so that the linker cannot
// use a function compiled for a newer processor on an older one.
//
// The types are the compiler's vectors (GCC, Clang), with C++'s operators per lane. vectors_avx2.inl and
// vectors_avx512.inl define the same further operations:
//   Mask<V>: a set of lanes of V. Equal and Greater (of lanes below half their range) return one; MaskOf<V>(bits)
//     and BitsOf(mask) convert it; Select(mask, a, b); CountUp(v, mask) adds 1 to the lanes of the mask.
//   UnpackLow8 to UnpackHigh64 and Pack16, within 16 bytes; TableOf(16 bytes) and LookUp(table, indices).
//   Widen: bytes to lanes of 32 bits. StoreNarrow: 64 lanes, given by vectors, to bytes.
//   Bits64<Word>: a bit for each of 64 words, from the masks of vectors.
//   Compress: moves lanes with set bits to the front; the rest is undefined. Expand: the inverse; other lanes are 0.
#include <immintrin.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 warns of its own AVX-512 intrinsics, whose unused operand is left undefined on purpose.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace jaxccomp::vectors {
namespace {

#if defined(__AVX512VBMI2__)
constexpr int kVectorBytes = 64;
using Native = __m512i;
#else
constexpr int kVectorBytes = 32;
using Native = __m256i;
#endif

template <typename T, int kBytes = kVectorBytes>
struct VectorOf {
  typedef T Type __attribute__((vector_size(kBytes)));
};
using U8 = VectorOf<uint8_t>::Type;
using U16 = VectorOf<uint16_t>::Type;
using U32 = VectorOf<uint32_t>::Type;
using U64 = VectorOf<uint64_t>::Type;
template <typename V>
using Lane = std::remove_reference_t<decltype(V{}[0])>;
template <typename V>
constexpr int kLanesOf = sizeof(V) / sizeof(Lane<V>);
template <typename V>
using Signed = typename VectorOf<std::make_signed_t<Lane<V>>, sizeof(V)>::Type;

template <typename V>
inline V Load(const void* at) {
  V v;
  __builtin_memcpy(&v, at, sizeof(v));
  return v;
}
template <typename V>
inline void Store(void* at, V v) {
  __builtin_memcpy(at, &v, sizeof(v));
}
template <typename V>
inline V Fill(Lane<V> value) {
  return V{} + value;
}
template <typename V>
inline V Min(V a, V b) {
  return a < b ? a : b;
}

// 64 bytes.
constexpr int kParts = 64 / kVectorBytes;
struct Bytes {
  U8 part[kParts];
};
// Part by part: copying the struct would go through memory.
inline Bytes LoadBytes(const uint8_t* at) {
  Bytes v;
  for (int k = 0; k < kParts; ++k) v.part[k] = Load<U8>(at + k * kVectorBytes);
  return v;
}
inline void StoreBytes(uint8_t* at, const Bytes& v) {
  for (int k = 0; k < kParts; ++k) Store(at + k * kVectorBytes, v.part[k]);
}

}  // namespace
}  // namespace jaxccomp::vectors

#if defined(__AVX512VBMI2__)
#include "codec/vectors_avx512.inl"
#else
#include "codec/vectors_avx2.inl"
#endif

namespace jaxccomp::vectors {
namespace {

inline Mask64 SpreadOf(uint64_t bits) {
  Mask64 mask;
  for (int k = 0; k < kParts; ++k) mask.part[k] = SpreadPart(bits, k);
  return mask;
}
inline Bytes CountUp(Bytes v, const Mask64& mask) {
  for (int k = 0; k < kParts; ++k) v.part[k] = CountUp(v.part[k], mask.part[k]);
  return v;
}

inline U32 FloatBits(U32 v) {
  return U32(__builtin_convertvector(Signed<U32>(v), VectorOf<float>::Type));
}

}  // namespace
}  // namespace jaxccomp::vectors
