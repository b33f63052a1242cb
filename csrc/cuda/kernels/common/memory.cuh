// Memory accesses of kernels, as wide as the alignment allows. Encoded bytes may be at any address, since headers of
// any size precede them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/host_device.h"

namespace jaxccomp::cuda {

inline constexpr int kVectorBytes = 16;   // the widest access that all architectures support

template <int kBytes>
struct alignas(kBytes) Words {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  uint32_t word[kBytes / 4];
};

// The largest power of two up to kVectorBytes that divides an address.
JAXCCOMP_HOST_DEVICE inline int Alignment(const void* at) {
  const auto address = reinterpret_cast<uintptr_t>(at) | kVectorBytes;
  return static_cast<int>(address & (0 - address));
}

JAXCCOMP_HOST_DEVICE inline int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0); }

// One access. On the host, where tests run the kernels, an unaligned access traps, as on a GPU.
template <typename T>
JAXCCOMP_HOST_DEVICE inline T LoadOne(const std::byte* at) {
#if defined(__CUDA_ARCH__)
  return *reinterpret_cast<const T*>(at);
#else
  if (reinterpret_cast<uintptr_t>(at) % alignof(T) != 0) __builtin_trap();
  T value;
  __builtin_memcpy(&value, at, sizeof(T));
  return value;
#endif
}

template <typename T>
JAXCCOMP_HOST_DEVICE inline void StoreOne(std::byte* at, const T& value) {
#if defined(__CUDA_ARCH__)
  *reinterpret_cast<T*>(at) = value;
#else
  if (reinterpret_cast<uintptr_t>(at) % alignof(T) != 0) __builtin_trap();
  __builtin_memcpy(at, &value, sizeof(T));
#endif
}

// Loads kBytes (at most 4) from `at`, in units of T.
template <typename T, int kBytes>
JAXCCOMP_HOST_DEVICE inline uint32_t LoadUnits(const std::byte* at) {
  uint32_t word = 0;
  JAXCCOMP_UNROLL
  for (int i = 0; i < kBytes; i += static_cast<int>(sizeof(T))) {
    word |= static_cast<uint32_t>(LoadOne<T>(at + i)) << (8 * i);
  }
  return word;
}

template <typename T, int kBytes>
JAXCCOMP_HOST_DEVICE inline void StoreUnits(std::byte* at, uint32_t word) {
  JAXCCOMP_UNROLL
  for (int i = 0; i < kBytes; i += static_cast<int>(sizeof(T))) {
    StoreOne<T>(at + i, static_cast<T>(word >> (8 * i)));
  }
}

// A little-endian number of 1, 2 or 4 bytes.
template <int kBytes>
JAXCCOMP_HOST_DEVICE inline uint32_t LoadNumber(const std::byte* at, int alignment) {
  if (kBytes >= 4 && alignment >= 4) return LoadUnits<uint32_t, kBytes>(at);
  if (kBytes >= 2 && alignment >= 2) return LoadUnits<uint16_t, kBytes>(at);
  return LoadUnits<uint8_t, kBytes>(at);
}

template <int kBytes>
JAXCCOMP_HOST_DEVICE inline void StoreNumber(std::byte* at, uint32_t number, int alignment) {
  if (kBytes >= 4 && alignment >= 4) return StoreUnits<uint32_t, kBytes>(at, number);
  if (kBytes >= 2 && alignment >= 2) return StoreUnits<uint16_t, kBytes>(at, number);
  StoreUnits<uint8_t, kBytes>(at, number);
}

template <int kBytes>
JAXCCOMP_HOST_DEVICE inline Words<kBytes> Load(const std::byte* at, int alignment) {
  if (alignment >= kBytes) return LoadOne<Words<kBytes>>(at);
  Words<kBytes> words;
  JAXCCOMP_UNROLL
  for (int i = 0; i < kBytes / 4; ++i) words.word[i] = LoadNumber<4>(at + 4 * i, alignment);
  return words;
}

template <int kBytes>
JAXCCOMP_HOST_DEVICE inline void Store(std::byte* at, const Words<kBytes>& words, int alignment) {
  if (alignment >= kBytes) return StoreOne(at, words);
  JAXCCOMP_UNROLL
  for (int i = 0; i < kBytes / 4; ++i) StoreNumber<4>(at + 4 * i, words.word[i], alignment);
}

}  // namespace jaxccomp::cuda
