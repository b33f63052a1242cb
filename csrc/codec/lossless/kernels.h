// The inner loops: a table of functions per instruction set; kernels.cc picks a table at run time. All
// tables give the same bytes. Private to lossless/ and its tests and benchmark.
//
// Kernels may read or overwrite "padded" memory up to kPadBytes past its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/lossless/layout.h"

namespace jaxccomp::lossless {

inline constexpr int64_t kPadBytes = 64;

struct Kernels {
  const char* name;

  // Cuts `count` words, XORed with `ref` unless it is null, into the layout's planes. Each plane has a
  // byte per word, in the format's order within groups. Pointers need no alignment; nothing is padded.
  using Split = void (*)(const void* src, const void* ref, int64_t count, uint8_t* const* planes);
  // The inverse. Ignores bits of a plane's bytes above its width.
  using Merge = void (*)(void* dst, const void* ref, int64_t count, const uint8_t* const* planes);
  Split split[kLayoutCount];
  Merge merge[kLayoutCount];

  // Encodes one level of a plane: writes a code per byte of `in` to the bit planes `bits`, and the bytes
  // that are not in `symbols` to `escapes`; returns the number of escapes. All memory is padded.
  // Code 0 is symbols[0]; with two bits, 1 and 2 are the other symbols and 3 is an escape.
  using EncodeLevel = int64_t (*)(const uint8_t* in, int64_t count, const uint8_t* symbols,
                                  uint8_t* bits, uint8_t* escapes);
  // The inverse. Returns the number of escapes taken: at most `count` for any bits, and `escapes` has
  // room for `count`, padded.
  using DecodeLevel = int64_t (*)(const uint8_t* bits, int64_t count, const uint8_t* symbols,
                                  const uint8_t* escapes, uint8_t* out);
  EncodeLevel encode_level[3];   // by code width; [0] is null
  DecodeLevel decode_level[3];

  // One pass for `split` and the last plane's `encode_level[2]`, which does not write that plane; and one pass
  // for the last plane's `decode_level[2]` and `merge`. For whole groups of 64 words; null if not faster with
  // this instruction set.
  using SplitEncode = int64_t (*)(const void* src, const void* ref, int64_t count,
                                  uint8_t* const* planes, const uint8_t* symbols, uint8_t* bits,
                                  uint8_t* escapes);
  using DecodeMerge = int64_t (*)(void* dst, const void* ref, int64_t count,
                                  const uint8_t* const* planes, const uint8_t* symbols,
                                  const uint8_t* bits, const uint8_t* escapes);
  SplitEncode split_encode[kLayoutCount];
  DecodeMerge decode_merge[kLayoutCount];

  // The number of each of the 256 bytes among fewer than 2^16 padded bytes.
  void (*histogram)(const uint8_t* in, int64_t count, uint16_t* counts);

  // The low `width` bits of bytes as bit planes, and back; width is 3, 5 or 8. All memory is
  // padded.
  void (*pack)(const uint8_t* in, int64_t count, int width, uint8_t* bits);
  void (*unpack)(const uint8_t* bits, int64_t count, int width, uint8_t* out);
};

// The tables that this machine can run, the fastest first; never empty.
std::span<const Kernels* const> RunnableKernels();
inline const Kernels& BestKernels() { return *RunnableKernels().front(); }

}  // namespace jaxccomp::lossless
