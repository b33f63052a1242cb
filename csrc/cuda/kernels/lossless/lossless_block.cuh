// Cooperative functions of a thread block: prefix sums over octets, and copies.
#pragma once

#include "cuda/kernels/lossless/lossless_octet.cuh"

namespace jaxccomp::cuda {

// Threads of a thread block that encodes or decodes, and octets per thread: together a block of the format.
inline constexpr int kThreads = 512;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kOctets = static_cast<int>(kBlockWords) / 8 / kThreads;
static_assert(kOctets == 4);
// Blocks of the format in a segment.
inline constexpr int kMaxBlocks = static_cast<int>(kSegmentWords / kBlockWords);
static_assert(kMaxBlocks == 2);

// Buffers are aligned to kPad, and have kPad bytes at the end, since octets may be read beyond the data.
inline constexpr int kPad = 16;
inline constexpr int kPlaneBytes = static_cast<int>(kBlockWords) + kPad;
inline constexpr int kBitBytes = static_cast<int>(kBlockWords) / 8 + kPad;   // of one bit plane

// Prefix sums over octets. Thread t has octets t, t + kThreads, ..., one per row, so that neighbouring threads have
// neighbouring octets.
struct Ranks {
  uint32_t before[kOctets];   // the sum before the thread's octet in each row, including earlier rows
  uint32_t total;
};

// Whether the caller's warp has any of `octets` octets in row `row`; the same for all of its lanes.
JAXCCOMP_DEVICE bool WarpHas(int octets, int row) {
  return static_cast<int>(Warp() * 32) + row * kThreads < octets;
}

// Byte j of `counts` is the count of the thread's octet in row j: at most 8, and 0 if there is no octet. `sums` has
// kWarps entries. Calls Sync() once; call it again before reusing `sums`. Within a warp the sums of four rows fit into
// a register: the sum before a lane is at most 31 * 8.
JAXCCOMP_DEVICE Ranks RankOctets(uint32_t counts, int octets, uint64_t* sums) {
  uint32_t before = 0;
  if (WarpHas(octets, 0)) {
    before = ShuffleUp(counts, 1);
    before = Lane() == 0 ? 0 : before;
    JAXCCOMP_UNROLL
    for (unsigned d = 1; d < 32; d *= 2) before = AddUp(before, d);
  }
  // Bytes 0 and 1, and bytes 2 and 3, widened to 16 bits.
  uint32_t of_warp[2] = {Permute(before, 0, 0x4140), Permute(before, 0, 0x4342)};
  if (Lane() == 31) {
    const uint32_t all[2] = {of_warp[0] + Permute(counts, 0, 0x4140),
                             of_warp[1] + Permute(counts, 0, 0x4342)};
    StorePair(sums + Warp(), all);
  }
  Sync();
  uint32_t warp[2] = {0, 0};
  if (Lane() < kWarps) LoadPair(sums + Lane(), warp);
  Ranks ranks;
  ranks.total = 0;
  JAXCCOMP_UNROLL
  for (int h = 0; h < 2; ++h) {
    // Shortcut: most levels have no octets in the last two rows.
    if (h == 1 && octets <= 2 * kThreads) {
      ranks.before[2] = ranks.before[3] = 0;
      break;
    }
    const uint32_t total = WarpSum(warp[h]);
    const uint32_t earlier = WarpSum(Lane() < Warp() ? warp[h] : 0) + of_warp[h];
    ranks.before[2 * h] = ranks.total + (earlier & 0xffff);
    ranks.total += total & 0xffff;
    ranks.before[2 * h + 1] = ranks.total + (earlier >> 16);
    ranks.total += total >> 16;
  }
  return ranks;
}

// Copies vectors from `src` shifted by kWord words and `bits` bits.
template <int kWord>
JAXCCOMP_DEVICE void CopyVectors(uint8_t* dst, const uint8_t* src, int vectors, unsigned bits) {
  JAXCCOMP_NO_UNROLL
  for (int i = static_cast<int>(Thread()); i < vectors; i += kThreads) {
    // Whole vectors, so that the lanes of a quarter warp have no bank conflicts.
    const Vector a = LoadVector(src + 16 * i), b = LoadVector(src + 16 * i + 16);
    const uint32_t w[8] = {a.x[0], a.x[1], a.x[2], a.x[3], b.x[0], b.x[1], b.x[2], b.x[3]};
    Vector v;
    JAXCCOMP_UNROLL
    for (int k = 0; k < 4; ++k) v.x[k] = FunnelRight(w[kWord + k], w[kWord + k + 1], bits);
    StoreVector(dst + 16 * i, v);
  }
}

// Copies `bytes` bytes between any addresses, mostly as vectors. Does not access bytes outside.
JAXCCOMP_DEVICE void CopyBytes(uint8_t* dst, const uint8_t* src, int bytes) {
  const int thread = static_cast<int>(Thread());
  int head = static_cast<int>(-reinterpret_cast<uintptr_t>(dst) & 15);
  // Vectors read from src start `off` bytes early, and end up to 16 bytes late.
  const int off = static_cast<int>((reinterpret_cast<uintptr_t>(src) + head) & 15);
  if (head < off) head += 16;
  const int vectors = bytes < head + 32 ? 0 : (bytes - head - 16) / 16;
  if (vectors == 0) head = bytes;
  JAXCCOMP_NO_UNROLL
  for (int i = thread; i < head; i += kThreads) dst[i] = src[i];
  JAXCCOMP_NO_UNROLL
  for (int i = head + 16 * vectors + thread; i < bytes; i += kThreads) dst[i] = src[i];
  src += head - off;
  dst += head;
  const auto bits = static_cast<unsigned>(8 * (off & 3));
  switch (off >> 2) {
    case 0: return CopyVectors<0>(dst, src, vectors, bits);
    case 1: return CopyVectors<1>(dst, src, vectors, bits);
    case 2: return CopyVectors<2>(dst, src, vectors, bits);
    default: return CopyVectors<3>(dst, src, vectors, bits);
  }
}

}  // namespace jaxccomp::cuda
