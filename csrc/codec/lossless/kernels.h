// The inner loops of one instruction set, as a table of functions; kernels.cc picks a table at run
// time. All tables give the same bytes. Private to lossless/ and its tests and benchmark.
//
// "Padded" memory may be read, or overwritten, up to kPadBytes past its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/lossless/layout.h"

namespace jaxccomp::lossless {

inline constexpr int64_t kPadBytes = 64;

struct Kernels {
  const char* name;

  // Cuts `count` words, XORed with `ref` unless that is null, into the layout's planes, a byte per
  // word in each, in the format's order within groups. Pointers need no alignment; nothing is
  // padded.
  using Split = void (*)(const void* src, const void* ref, int64_t count, uint8_t* const* planes);
  // The inverse. Bits of a plane's bytes above its width are ignored.
  using Merge = void (*)(void* dst, const void* ref, int64_t count, const uint8_t* const* planes);
  Split split[kLayoutCount];
  Merge merge[kLayoutCount];

  // One level of a coded plane: writes a code per byte of `in` to the bit planes `bits` and the
  // bytes that are none of `symbols` to `escapes`; returns how many those are. All are padded.
  // Code 0 stands for symbols[0]; of two bits, 1 and 2 for the others and 3 for an escape.
  using EncodeLevel = int64_t (*)(const uint8_t* in, int64_t count, const uint8_t* symbols,
                                  uint8_t* bits, uint8_t* escapes);
  // The inverse; returns how many of `escapes` were taken, which is `count` at most whatever the
  // bits: the caller has room for so many, padded.
  using DecodeLevel = int64_t (*)(const uint8_t* bits, int64_t count, const uint8_t* symbols,
                                  const uint8_t* escapes, uint8_t* out);
  EncodeLevel encode_level[3];   // by code width; [0] is null
  DecodeLevel decode_level[3];

  // `split` and `encode_level[2]` of the last plane in one pass, which is then written nowhere;
  // and `merge` with `decode_level[2]` of the last plane. For whole groups of 64 words; null where
  // an instruction set gains nothing by it.
  using SplitEncode = int64_t (*)(const void* src, const void* ref, int64_t count,
                                  uint8_t* const* planes, const uint8_t* symbols, uint8_t* bits,
                                  uint8_t* escapes);
  using DecodeMerge = int64_t (*)(void* dst, const void* ref, int64_t count,
                                  const uint8_t* const* planes, const uint8_t* symbols,
                                  const uint8_t* bits, const uint8_t* escapes);
  SplitEncode split_encode[kLayoutCount];
  DecodeMerge decode_merge[kLayoutCount];

  // How often each of the 256 bytes occurs among fewer than 2^16, which are padded.
  void (*histogram)(const uint8_t* in, int64_t count, uint16_t* counts);

  // The low `width` bits of bytes as bit planes, and back; width is 3, 5 or 8. All memory is
  // padded.
  void (*pack)(const uint8_t* in, int64_t count, int width, uint8_t* bits);
  void (*unpack)(const uint8_t* bits, int64_t count, int width, uint8_t* out);
};

// The tables that this machine can run, the best first; never empty.
std::span<const Kernels* const> RunnableKernels();
inline const Kernels& BestKernels() { return *RunnableKernels().front(); }

}  // namespace jaxccomp::lossless
