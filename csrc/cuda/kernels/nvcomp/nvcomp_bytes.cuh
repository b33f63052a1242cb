// Cooperative functions of a CTA for the kernels around nvCOMP: prefix sums, copies and checksums.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/kernels/common/lanes.cuh"
#include "cuda/kernels/common/memory.cuh"

namespace jaxccomp::cuda {

// Replaces each thread's number by the sum of the earlier threads' numbers. Returns the sum of all.
JAXCCOMP_DEVICE uint64_t SumBefore(Lanes& lanes, uint64_t& number) {
  constexpr int kWarps = kThreads / kWarp;
  static_assert(2 * kWarps <= kSharedWords);
  const int warp = lanes.thread() / kWarp, lane = lanes.thread() % kWarp;
  uint64_t sum = number;
  for (int below = 1; below < kWarp; below *= 2) {
    const uint64_t other = simt::ShuffleUp(sum, static_cast<unsigned>(below));
    if (lane >= below) sum += other;
  }
  uint32_t* const shared = lanes.shared();
  lanes.Sync();   // all threads have read the earlier contents
  if (lane == kWarp - 1) {
    shared[2 * warp] = static_cast<uint32_t>(sum);
    shared[2 * warp + 1] = static_cast<uint32_t>(sum >> 32);
  }
  lanes.Sync();
  uint64_t before = 0, all = 0;
  for (int w = 0; w < kWarps; ++w) {
    const uint64_t of_warp = static_cast<uint64_t>(shared[2 * w + 1]) << 32 | shared[2 * w];
    if (w < warp) before += of_warp;
    all += of_warp;
  }
  number = before + sum - number;
  return all;
}

// Loads sixteen bytes from any address, a byte at a time.
JAXCCOMP_DEVICE simt::Vector LoadBytes(const std::byte* at) {
  simt::Vector v;
  JAXCCOMP_UNROLL
  for (int i = 0; i < 4; ++i) v.x[i] = LoadNumber<4>(at + 4 * i, 1);
  return v;
}

// Loads sixteen bytes from any address, as aligned words.
JAXCCOMP_DEVICE simt::Vector LoadShifted(const std::byte* at, unsigned misaligned) {
  const std::byte* const words = at - misaligned;
  uint32_t low = simt::LoadAs<uint32_t>(words);
  simt::Vector v;
  JAXCCOMP_UNROLL
  for (int i = 0; i < 4; ++i) {
    const uint32_t high =
        misaligned != 0 || i < 3 ? simt::LoadAs<uint32_t>(words + 4 * (i + 1)) : 0;
    v.x[i] = simt::FunnelRight(low, high, 8 * misaligned);
    low = high;
  }
  return v;
}

// Copies `bytes` bytes with a CTA, between any addresses. Does not read outside of `from`.
JAXCCOMP_DEVICE void CopyBytes(Lanes& lanes, std::byte* to, const std::byte* from, int64_t bytes) {
  const int64_t unaligned = (0 - reinterpret_cast<uintptr_t>(to)) & (kVectorBytes - 1);
  const int64_t head = unaligned < bytes ? unaligned : bytes;
  const int64_t vectors = (bytes - head) / kVectorBytes;
  const int64_t tail = head + vectors * kVectorBytes;
  const auto phase = reinterpret_cast<uintptr_t>(from + head);
  const bool aligned = phase % kVectorBytes == 0;
  const auto misaligned = static_cast<unsigned>(phase % 4);
  for (int64_t v = lanes.thread(); v < vectors; v += kThreads) {
    const std::byte* const at = from + head + v * kVectorBytes;
    // Aligned words at the ends may contain bytes outside of `from`.
    const bool at_end = misaligned != 0 && (v == 0 || v == vectors - 1);
    simt::StoreVector(to + head + v * kVectorBytes, aligned  ? simt::LoadVector(at)
                                                    : at_end ? LoadBytes(at)
                                                             : LoadShifted(at, misaligned));
  }
  if (lanes.thread() < head) to[lanes.thread()] = from[lanes.thread()];
  if (tail + lanes.thread() < bytes) to[tail + lanes.thread()] = from[tail + lanes.thread()];
}

// A bijective hash of a word with its place: the finalizer of MurmurHash3.
JAXCCOMP_DEVICE uint32_t MixedWord(uint32_t word, uint32_t place) {
  uint32_t h = word ^ place;
  h = (h ^ h >> 16) * 0x85ebca6bu;
  h = (h ^ h >> 13) * 0xc2b2ae35u;
  return h ^ h >> 16;
}
JAXCCOMP_DEVICE uint32_t PlaceOf(int64_t chunk, int64_t word) {
  return static_cast<uint32_t>(chunk) * 0x85ebca6bu + static_cast<uint32_t>(word) * 0x9e3779b1u;
}

// Adds the words of a piece of chunk `chunk` to the checksum with a CTA, modulo 2^32, so that the order does not
// matter. The piece is aligned to 16 bytes, and begins with the chunk's word `first`; its last word is padded with 0.
JAXCCOMP_DEVICE void AddChecksum(Lanes& lanes, const std::byte* piece, int64_t bytes, int64_t chunk,
                                 int64_t first, uint32_t* checksum) {
  uint32_t sum = 0;
  const int64_t vectors = bytes / kVectorBytes;
  for (int64_t v = lanes.thread(); v < vectors; v += kThreads) {
    const simt::Vector words = simt::LoadVector(piece + v * kVectorBytes);
    JAXCCOMP_UNROLL
    for (int i = 0; i < 4; ++i) sum += MixedWord(words.x[i], PlaceOf(chunk, first + 4 * v + i));
  }
  const int64_t at = vectors * kVectorBytes + 4 * lanes.thread();
  if (at < bytes) {
    uint32_t word = 0;
    for (int64_t i = 0; i < 4 && at + i < bytes; ++i) {
      word |= static_cast<uint32_t>(piece[at + i]) << (8 * i);
    }
    sum += MixedWord(word, PlaceOf(chunk, first + at / 4));
  }
  for (int mask = 1; mask < kWarp; mask *= 2) sum += lanes.Xor(sum, mask);
  if (lanes.thread() % kWarp == 0) simt::AtomicAdd(checksum, sum);
}

}  // namespace jaxccomp::cuda
