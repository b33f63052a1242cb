// Parses headers and index of a segment from untrusted bytes, with one thread.
#pragma once

#include "cuda/kernels/lossless/lossless_analyze.cuh"
#include "cuda/kernels/lossless/lossless_block.cuh"

namespace jaxccomp::cuda {

using lossless::BlockMode;

struct Payload {
  const uint8_t* bytes;
  int64_t size;
};

// The index entry of a plane in a block.
struct PlaneEntry {
  uint16_t mode;
  uint16_t set_bytes;
  uint16_t escapes[kMaxLevels];
};

inline constexpr int64_t kInvalid = -1;

JAXCCOMP_DEVICE int Load16(const uint8_t* at) { return at[0] | at[1] << 8; }

// Reads the header of a plane, without reading beyond `end`. Returns its end, or null if it is invalid.
JAXCCOMP_DEVICE const uint8_t* ReadPlaneHeader(const uint8_t* at, const uint8_t* end,
                                               PlanePlan* plan, int& descriptor) {
  if (end - at < lossless::kDescriptorBytes) return nullptr;
  descriptor = Load16(at);
  at += lossless::kDescriptorBytes;
  if (descriptor >> (2 * kMaxLevels) != 0) return nullptr;
  int level = 0;
  JAXCCOMP_NO_UNROLL
  for (int rest = descriptor; rest != 0; rest >>= 2, ++level) {
    const int width = rest & 3;
    if (width == 0 || width == 3) return nullptr;
    const int symbols = width == 2 ? 3 : 1;
    if (end - at < symbols) return nullptr;
    if (plan != nullptr) {
      plan->code_bits[level] = static_cast<uint8_t>(width);
      plan->symbols[level] =
          width == 1 ? at[0] : at[0] | at[1] << 8 | static_cast<uint32_t>(at[2]) << 16;
    }
    at += symbols;
  }
  if (plan != nullptr) plan->levels = static_cast<uint8_t>(level);
  return at;
}

JAXCCOMP_DEVICE int LevelsOf(int descriptor) {
  int levels = 0;
  for (; descriptor != 0; descriptor >>= 2) ++levels;
  return levels;
}

// Reads the index entry of a plane of `width` bits in a block of n words. Returns the plane's bytes, or kInvalid.
JAXCCOMP_DEVICE int ReadEntry(const uint8_t* at, int descriptor, int width, int n,
                              PlaneEntry* entry) {
  const int head = Load16(at), mode = head & 3, set_bytes = head >> 2;
  const bool sparse = mode == static_cast<int>(BlockMode::kSparse);
  const bool coded = sparse || mode == static_cast<int>(BlockMode::kCoded);
  int any = set_bytes, count = n, bytes = 0, level = 0;
  bool valid = true;
  JAXCCOMP_NO_UNROLL
  for (int rest = descriptor; rest != 0; rest >>= 2, ++level) {
    const int escapes = Load16(at + 2 + 2 * level);
    bytes += BitBytes(rest & 3, count);
    if (level == 0 && sparse) {
      const int bits_bytes = BitBytes(1, n);
      valid &= (rest & 3) == 1 && set_bytes <= bits_bytes;
      bytes += BitBytes(1, bits_bytes) + set_bytes - bits_bytes;
    }
    valid &= escapes <= count;
    any |= escapes;
    count = escapes;
    if (entry != nullptr) entry->escapes[level] = static_cast<uint16_t>(escapes);
  }
  bytes += count;
  if (entry != nullptr) {
    entry->mode = static_cast<uint16_t>(mode);
    entry->set_bytes = static_cast<uint16_t>(set_bytes);
  }
  const int raw_bytes = RawBytes(width, n);
  if (!coded) {
    if (any != 0) return static_cast<int>(kInvalid);
    return mode == static_cast<int>(BlockMode::kConstant) ? 0 : raw_bytes;
  }
  // Encoders store a plane raw unless its code is shorter.
  if (!valid || (!sparse && set_bytes != 0) || bytes >= raw_bytes) {
    return static_cast<int>(kInvalid);
  }
  return bytes;
}

// The facts of a segment that decoding a block needs.
template <Layout layout>
struct ParsedBlock {
  int64_t at;   // offset of the block's first byte, also in a stored segment
  int32_t stored;
  int32_t bytes[Cutting<layout>::kPlanes];   // of each plane
  PlanePlan plans[Cutting<layout>::kPlanes];
  PlaneEntry entries[Cutting<layout>::kPlanes];
};

// Reads a segment of n words at `at`, without reading beyond `size`. Returns its end, or kInvalid. Writes the facts
// for block `wanted` to `out`, unless it is null.
template <Layout layout>
JAXCCOMP_DEVICE int64_t ParseSegment(const uint8_t* payload, int64_t at, int64_t size, int n,
                                     int wanted, ParsedBlock<layout>* out) {
  constexpr int kPlanes = Cutting<layout>::kPlanes, kBytes = Cutting<layout>::kWordBytes;
  if (at >= size) return kInvalid;
  const int kind = payload[at++];
  if (out != nullptr) out->stored = kind == static_cast<int>(lossless::SegmentKind::kStored);
  if (kind == static_cast<int>(lossless::SegmentKind::kStored)) {
    if (out != nullptr) out->at = at + wanted * kBlockWords * kBytes;
    return size - at < static_cast<int64_t>(n) * kBytes ? kInvalid : at + n * kBytes;
  }
  if (kind != static_cast<int>(lossless::SegmentKind::kPlanes)) return kInvalid;
  const uint8_t* header = payload + at;
  const uint8_t* const end = payload + size;
  int descriptors[kPlanes], index_bytes = 0;
  JAXCCOMP_UNROLL
  for (int p = 0; p < kPlanes; ++p) {
    PlanePlan* const plan = out == nullptr ? nullptr : out->plans + p;
    header = ReadPlaneHeader(header, end, plan, descriptors[p]);
    if (header == nullptr) return kInvalid;
    if (descriptors[p] != 0) index_bytes += 2 + 2 * LevelsOf(descriptors[p]);
  }
  const int blocks = (n + static_cast<int>(kBlockWords) - 1) / static_cast<int>(kBlockWords);
  if (end - header < blocks * index_bytes) return kInvalid;
  at = header - payload + blocks * index_bytes;
  JAXCCOMP_NO_UNROLL
  for (int b = 0; b < blocks; ++b) {
    const int left = n - b * static_cast<int>(kBlockWords);
    const int count = left < kBlockWords ? left : static_cast<int>(kBlockWords);
    ParsedBlock<layout>* const to = b == wanted ? out : nullptr;
    int block_bytes = 0;
    JAXCCOMP_UNROLL
    for (int p = 0; p < kPlanes; ++p) {
      int bytes = RawBytes(WidthOf<layout>(p), count);
      if (descriptors[p] != 0) {
        bytes = ReadEntry(header, descriptors[p], WidthOf<layout>(p), count,
                          to == nullptr ? nullptr : to->entries + p);
        if (bytes < 0) return kInvalid;
        header += 2 + 2 * LevelsOf(descriptors[p]);
      }
      if (to != nullptr) to->bytes[p] = bytes;
      block_bytes += bytes;
    }
    if (to != nullptr) to->at = at;
    if (size - at < block_bytes) return kInvalid;
    at += block_bytes;
  }
  return at;
}

inline constexpr int kParseThreads = 64;

// The third kernel of decoding: a thread parses the segment of a block.
template <Layout layout>
struct ParseKernel {
  static constexpr int kLaunchThreads = kParseThreads;
  static constexpr int kMinBlocks = 1;

  Payload payload;
  int64_t words;
  const int64_t* offsets;   // of each segment; valid if *status is 0
  const int32_t* status;
  ParsedBlock<layout>* parsed;

  JAXCCOMP_DEVICE void operator()(void*) const {
    const int64_t block = Block() * int64_t{kParseThreads} + Thread();
    if (block * kBlockWords >= words || *status != 0) return;
    const int64_t segment = block / kMaxBlocks;
    const int64_t left = words - segment * kSegmentWords;
    ParseSegment<layout>(payload.bytes, offsets[segment], payload.size,
                         static_cast<int>(left < kSegmentWords ? left : kSegmentWords),
                         static_cast<int>(block % kMaxBlocks), parsed + block);
  }
};

}  // namespace jaxccomp::cuda
