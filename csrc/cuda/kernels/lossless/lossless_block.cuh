// What the threads of a block do together: prefix sums over octets and copies.
#pragma once

#include "cuda/kernels/common/prefix_sum.cuh"
#include "cuda/kernels/lossless/lossless_octet.cuh"

namespace jaxccomp::cuda {

// Threads of a block that codes, and octets of each: together all of a block of the format.
inline constexpr int kThreads = 512;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kOctets = static_cast<int>(kBlockWords) / 8 / kThreads;
static_assert(kOctets == 4);
// Of the format, in a segment.
inline constexpr int kMaxBlocks = static_cast<int>(kSegmentWords / kBlockWords);
static_assert(kMaxBlocks == 2);

// Bytes that may be read past an octet at the end of a buffer, and what buffers are aligned to.
inline constexpr int kPad = 16;
inline constexpr int kPlaneBytes = static_cast<int>(kBlockWords) + kPad;
inline constexpr int kBitBytes = static_cast<int>(kBlockWords) / 8 + kPad;   // of one bit plane

// Thread t has octets t, t + kThreads, ... so that neighbours lie next to each other.
using Ranks = RowRanks<kOctets>;
JAXCCOMP_DEVICE Ranks RankOctets(uint64_t counts, uint64_t* sums) {
  return RankRows<kWarps, kOctets>(counts, sums);
}

// Copies between any addresses; nothing but `bytes` bytes is read or written. Most of the target is
// written in vectors.
JAXCCOMP_OUT_OF_LINE void CopyBytes(uint8_t* dst, const uint8_t* src, int bytes) {
  const int thread = static_cast<int>(Thread());
  int head = static_cast<int>(-reinterpret_cast<uintptr_t>(dst) & 15);
  // The vectors' words begin up to three bytes early and end up to three late.
  const int off = static_cast<int>((reinterpret_cast<uintptr_t>(src) + head) & 3);
  if (head < off) head += 16;
  const int vectors = bytes < head + 20 ? 0 : (bytes - head - 4) / 16;
  if (vectors == 0) head = bytes;
  JAXCCOMP_NO_UNROLL
  for (int i = thread; i < head; i += kThreads) dst[i] = src[i];
  JAXCCOMP_NO_UNROLL
  for (int i = head + 16 * vectors + thread; i < bytes; i += kThreads) dst[i] = src[i];
  src += head - off;
  dst += head;
  JAXCCOMP_NO_UNROLL
  for (int i = thread; i < vectors; i += kThreads) {
    uint32_t w[5];
    JAXCCOMP_UNROLL
    for (int k = 0; k < 4; ++k) w[k] = LoadAs<uint32_t>(src + 16 * i + 4 * k);
    w[4] = off == 0 ? 0 : LoadAs<uint32_t>(src + 16 * i + 16);
    Vector v;
    JAXCCOMP_UNROLL
    for (int k = 0; k < 4; ++k) v.x[k] = FunnelRight(w[k], w[k + 1], 8 * off);
    StoreVector(dst + 16 * i, v);
  }
}

}  // namespace jaxccomp::cuda
