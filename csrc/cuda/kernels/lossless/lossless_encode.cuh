// The second kernel of encoding. A thread block handles a segment: it encodes the blocks in shared memory, gets the
// segment's offset in the output from the earlier segments (decoupled look-back, look_back.cuh), and writes there.
#pragma once

#include "cuda/kernels/common/look_back.cuh"
#include "cuda/kernels/lossless/lossless_analyze.cuh"
#include "cuda/kernels/lossless/lossless_block.cuh"

namespace jaxccomp::cuda {

using lossless::BlockMode;

// The maximum bytes of a segment's kind, headers and index.
inline constexpr int kMaxHeadBytes =
    1 + kMaxPlanes * (2 + kMaxSymbols + kMaxBlocks * (2 + 2 * kMaxLevels));

// The maximum bytes of a segment's encoded blocks in memory.
template <Layout layout>
inline constexpr int kImageBytes =
    kMaxBlocks *
    (static_cast<int>(kBlockWords) * Cutting<layout>::kWordBytes + 8 * kMaxPlanes + kPad) / 16 * 16;
// Blocks of 8-byte words do not fit into shared memory.
template <Layout layout>
inline constexpr bool kInShared = Cutting<layout>::kWordBytes <= 4;

struct alignas(16) EncodeShared {
  uint64_t sums[kWarps];
  uint64_t offset;
  uint32_t ticket;             // the number of the segment
  // The segment's state, not in registers, since encoding the levels of a plane needs all registers.
  uint32_t coded;              // bit p: plane p is coded
  int32_t header_bytes;        // including the kind
  int32_t index_bytes;         // of a block
  int32_t bytes[kMaxBlocks];   // of each block
  PlanePlan plans[kMaxPlanes];
  uint32_t selectors[256];     // Selector(set) of each set
  uint8_t head[kMaxHeadBytes];
  alignas(16) uint8_t bits[kBitBytes];   // of a sparse plane's first level
  alignas(16) uint8_t set[kBitBytes];    // the bytes of `bits` that are not 0
  alignas(16) uint8_t plane[kPlaneBytes];    // a plane, then its escapes
};

// The selector with which Permute() compacts an octet: its nibbles are the indices of the bits in `set`, in order.
JAXCCOMP_DEVICE uint32_t Selector(uint32_t set) {
  uint32_t selector = 0;
  int shift = 0;
  for (uint32_t i = 0; i < 8; ++i) {
    selector |= (set >> i & 1) * i << shift;
    shift += static_cast<int>(4 * (set >> i & 1));
  }
  return selector;
}

template <Layout layout>
inline constexpr int kEncodeSharedBytes =
    static_cast<int>(sizeof(EncodeShared)) + (kInShared<layout> ? kImageBytes<layout> : 0);

template <Layout layout>
struct EncodeKernel {
  static constexpr int kLaunchThreads = kThreads;
  static constexpr int kMinBlocks = kInShared<layout> && Cutting<layout>::kWordBytes <= 2 ? 2 : 1;
  const uint8_t* src;
  int64_t words;
  uint8_t* dst;
  const PlanePlan* plans;
  uint64_t* state;
  uint32_t* ticket;
  int64_t* size;
  uint8_t* images;   // encoded blocks for each thread block, if they do not fit into shared memory
  bool vectors;

  static constexpr int kBytes = Cutting<layout>::kWordBytes;
  static constexpr int kPlanes = Cutting<layout>::kPlanes;

  JAXCCOMP_DEVICE void operator()(void* memory) const {
    auto& shared = *static_cast<EncodeShared*>(memory);
    uint8_t* const image = kInShared<layout>
                               ? static_cast<uint8_t*>(memory) + sizeof(EncodeShared)
                               : images + static_cast<int64_t>(Block()) * kImageBytes<layout>;
    if (Block() == 0) WriteChunkHeader();
    if (Thread() < 256) shared.selectors[Thread()] = Selector(Thread());
    // Take segments by ticket, so that a thread block only waits for thread blocks that are already running.
    for (;;) {
      if (Thread() == 0) shared.ticket = AtomicAdd(ticket, 1);
      Sync();
      if (shared.ticket * kSegmentWords >= words) return;
      ReadPlans(shared);
      if (shared.coded != 0) {
        JAXCCOMP_NO_UNROLL
        for (int b = 0; b < BlocksIn(shared); ++b) EncodeBlock(shared, image, b);
      }
      WriteSegment(shared, image);
    }
  }

 private:
  JAXCCOMP_DEVICE void WriteChunkHeader() const {
    if (Thread() < 8) {
      const uint64_t header = lossless::kVersion | static_cast<uint64_t>(layout) << 8 |
                              static_cast<uint64_t>(words) << 32;
      dst[Thread()] = static_cast<uint8_t>(header >> (8 * Thread()));
    }
    if (words == 0 && Thread() == 0) *size = lossless::kChunkHeaderBytes;
  }

  JAXCCOMP_DEVICE int WordsIn(const EncodeShared& shared) const {
    const int64_t left = words - shared.ticket * kSegmentWords;
    return static_cast<int>(left < kSegmentWords ? left : kSegmentWords);
  }
  JAXCCOMP_DEVICE int BlocksIn(const EncodeShared& shared) const {
    return (WordsIn(shared) + static_cast<int>(kBlockWords) - 1) / static_cast<int>(kBlockWords);
  }
  JAXCCOMP_DEVICE int BlockWordsIn(const EncodeShared& shared, int b) const {
    const int left = WordsIn(shared) - b * static_cast<int>(kBlockWords);
    return left < kBlockWords ? left : static_cast<int>(kBlockWords);
  }
  // The offset of the second block's bytes in memory.
  JAXCCOMP_DEVICE static int SecondAt(const EncodeShared& shared) {
    return (shared.bytes[0] + 15) / 16 * 16;
  }

  JAXCCOMP_DEVICE void ReadPlans(EncodeShared& shared) const {
    for (int i = Thread(); i < kPlanes * 8; i += kThreads) {
      StoreAs(reinterpret_cast<uint8_t*>(shared.plans) + 4 * i,
              LoadAs<uint32_t>(
                  reinterpret_cast<const uint8_t*>(plans + int64_t{shared.ticket} * kPlanes) +
                  4 * i));
    }
    Sync();
    if (Thread() < kPlanes) {
      int header_bytes = 1, index_bytes = 0;
      uint32_t coded = 0;
      for (int p = 0; p < kPlanes; ++p) {
        const int levels = shared.plans[p].levels;
        if (Thread() == static_cast<unsigned>(p)) WriteHeader(shared, p, header_bytes);
        header_bytes += shared.plans[p].header_bytes;
        index_bytes += levels == 0 ? 0 : 2 + 2 * levels;
        coded |= static_cast<uint32_t>(levels != 0) << p;
      }
      if (Thread() == 0) {
        shared.coded = coded;
        shared.header_bytes = header_bytes;
        shared.index_bytes = index_bytes;
        shared.bytes[0] = shared.bytes[1] = 0;
      }
    }
    Sync();
  }

  // Writes the segment to the output, encoded or stored, whichever is shorter.
  JAXCCOMP_DEVICE void WriteSegment(EncodeShared& shared, const uint8_t* image) const {
    const int64_t segment = shared.ticket;
    const int value_bytes = WordsIn(shared) * kBytes;
    const int head_bytes = shared.header_bytes + BlocksIn(shared) * shared.index_bytes;
    const int coded_bytes = head_bytes + shared.bytes[0] + shared.bytes[1];
    const bool stored = shared.coded == 0 || coded_bytes >= 1 + value_bytes;
    const int total = stored ? 1 + value_bytes : coded_bytes;
    if (Warp() == 0) {
      const uint64_t offset = LookBack(state, segment, static_cast<uint64_t>(total));
      if (Lane() == 0) shared.offset = offset;
    }
    Sync();
    const auto offset = static_cast<int64_t>(shared.offset) + lossless::kChunkHeaderBytes;
    uint8_t* const out = dst + offset;
    if (Thread() == 0 && (segment + 1) * kSegmentWords >= words) *size = offset + total;
    if (stored && Thread() == 0) *out = static_cast<uint8_t>(lossless::SegmentKind::kStored);
    // Copy headers with index, and each block. A loop with one call of CopyBytes, which is a large function.
    int at = stored ? 1 : 0;
    JAXCCOMP_NO_UNROLL
    for (int part = 0; part <= (stored ? 0 : kMaxBlocks); ++part) {
      const uint8_t* from = image + (part < 2 ? 0 : SecondAt(shared));
      if (part == 0) from = stored ? src + segment * kSegmentWords * kBytes : shared.head;
      const int bytes = part > 0 ? shared.bytes[part - 1] : stored ? value_bytes : head_bytes;
      CopyBytes(out + at, from, bytes);
      at += bytes;
    }
  }

  JAXCCOMP_DEVICE static void WriteHeader(EncodeShared& shared, int p, int at) {
    const PlanePlan& plan = shared.plans[p];
    uint8_t* out = shared.head + at;
    shared.head[0] = static_cast<uint8_t>(lossless::SegmentKind::kPlanes);
    unsigned descriptor = 0;
    uint8_t* symbols = out + lossless::kDescriptorBytes;
    for (int l = 0; l < plan.levels; ++l) {
      descriptor |= plan.code_bits[l] << (2 * l);
      const int count = plan.code_bits[l] == 2 ? 3 : 1;
      for (int s = 0; s < count; ++s) *symbols++ = static_cast<uint8_t>(plan.symbols[l] >> (8 * s));
    }
    out[0] = static_cast<uint8_t>(descriptor);
    out[1] = static_cast<uint8_t>(descriptor >> 8);
  }

  // Encodes block b in memory: raw planes first, then coded ones. Its part of the index follows the headers.
  JAXCCOMP_DEVICE void EncodeBlock(EncodeShared& shared, uint8_t* image, int b) const {
    uint8_t* const out = image + (b == 0 ? 0 : SecondAt(shared));
    int index = shared.header_bytes + b * shared.index_bytes;
    uint32_t coded = shared.coded, raw = ~coded;
    int at = 0, raw_at = 0;
    for (int p = 0; p < kPlanes; ++p) {
      if ((coded >> p & 1) == 0) at += RawBytes(WidthOf<layout>(p), BlockWordsIn(shared, b));
    }
    // For each coded plane: load it, and in the same pass write raw planes. These are the uncoded planes in the first
    // iteration, later the plane before if its code was not shorter.
    JAXCCOMP_NO_UNROLL
    do {
      const int n = BlockWordsIn(shared, b);
      const int p = coded == 0 ? -1 : TrailingZeros(coded);
      Distribute(shared, b, n, raw, p, out + raw_at);
      Sync();
      raw = 0;
      if (p < 0) break;
      const int raw_bytes = RawBytes(WidthOf<layout>(p), n);
      const int bytes = EncodePlane(shared, shared.plans[p], n, raw_bytes, index, out + at);
      Sync();
      if (bytes == raw_bytes) raw = 1u << p;
      raw_at = at;
      at += bytes;
      index += 2 + 2 * shared.plans[p].levels;
      coded &= coded - 1;
    } while (coded != 0 || raw != 0);
    if (Thread() == 0) shared.bytes[b] = at;
    Sync();
  }

  // Cuts the block's words into planes. Writes the planes in the set `raw` contiguously to `out`, and plane `buffered`,
  // unless it is -1, to shared memory.
  JAXCCOMP_DEVICE void Distribute(EncodeShared& shared, int b, int n, uint32_t raw, int buffered,
                                  uint8_t* out) const {
    const int64_t begin = (shared.ticket * kSegmentWords + b * kBlockWords) * kBytes;
    const uint8_t* const from = src + begin;
    const int whole = vectors ? n / 64 * 8 : 0;   // octets in whole groups
    // A full block: its raw planes have a multiple of 8 bytes.
    if (8 * whole == kBlockWords && (reinterpret_cast<uintptr_t>(out) & 7) == 0) {
      DistributeFull(shared, from, raw, buffered, out);
      return;
    }
    JAXCCOMP_NO_UNROLL
    for (int o = static_cast<int>(Thread()); o < whole; o += kThreads) {
      uint32_t w[Cutting<layout>::kRegisters];
      LoadWords<layout, true>(from, o, n, w);
      Place<false>(shared, w, o, n, raw, buffered, out);
    }
    JAXCCOMP_NO_UNROLL
    for (int o = whole + static_cast<int>(Thread()); 8 * o < n; o += kThreads) {
      uint32_t w[Cutting<layout>::kRegisters];
      LoadWords<layout, false>(from, o, n, w);
      Place<false>(shared, w, o, n, raw, buffered, out);
    }
  }

  // Distribute for a full block with aligned input and output.
  JAXCCOMP_DEVICE static void DistributeFull(EncodeShared& shared, const uint8_t* from, uint32_t raw,
                                             int buffered, uint8_t* out) {
    // As many loads in flight as registers allow.
    constexpr int kBatch = kBytes == 2 || kBytes == 4 ? 2 : 1;
    static_assert(kOctets % kBatch == 0);
    // A thread's octets have equal distances in memory.
    constexpr int n = static_cast<int>(kBlockWords), kStep = kThreads * 8 * kBytes;
    JAXCCOMP_NO_UNROLL
    for (int first = static_cast<int>(Thread()); 8 * first < n; first += kBatch * kThreads) {
      uint32_t w[kBatch][Cutting<layout>::kRegisters];
      JAXCCOMP_UNROLL
      for (int i = 0; i < kBatch; ++i) {
        LoadWords<layout, true>(from + i * kStep, static_cast<int>(Thread()), n, w[i]);
      }
      JAXCCOMP_UNROLL
      for (int i = 0; i < kBatch; ++i) {
        Place<true>(shared, w[i], first + i * kThreads, n, raw, buffered, out);
      }
      from += kBatch * kStep;
    }
  }

  template <bool kAligned>
  JAXCCOMP_DEVICE static void Place(EncodeShared& shared, const uint32_t* w, int o, int n,
                                    uint32_t raw, int buffered, uint8_t* at) {
    uint32_t planes[kPlanes][2];
    Cut<layout>(w, planes);
    JAXCCOMP_UNROLL
    for (int p = 0; p < kPlanes; ++p) {
      if (p == buffered) StorePair(shared.plane + 8 * o, planes[p]);
      if ((raw >> p & 1) == 0) continue;
      if (kAligned && WidthOf<layout>(p) == 8) {
        StorePair(at + 8 * o, planes[p]);
      } else {
        StoreRaw(planes[p], o, n, WidthOf<layout>(p), at);
      }
      at += RawBytes(WidthOf<layout>(p), n);
    }
  }

  JAXCCOMP_DEVICE static void StoreRaw(const uint32_t* v, int o, int n, int width, uint8_t* at) {
    if (width == 8) {
      at += 8 * o;
      if ((reinterpret_cast<uintptr_t>(at) & 7) == 0 && 8 * o + 8 <= n) {
        StorePair(at, v);
        return;
      }
      StoreBytes(at, v[0], v[1], n - 8 * o);
      return;
    }
    const BitPlace place = PlaceOfBits(o, width, n);
    const uint32_t existing = Existing(o, n);
    for (int b = 0; b < width; ++b) {
      at[place.at + b * place.step] = static_cast<uint8_t>(PackBit(v, b) & existing);
    }
  }

  // Encodes the plane in shared memory to `out`, and writes its index entry. Returns its size; if that is `raw_bytes`,
  // the plane must be written raw.
  JAXCCOMP_DEVICE static int EncodePlane(EncodeShared& shared, const PlanePlan& plan, int n,
                                         int raw_bytes, int index_at, uint8_t* out) {
    uint8_t* const index = shared.head + index_at;
    BlockMode mode = BlockMode::kCoded;
    int used = 0, count = n, set_bytes = 0, level = 0;
    const int levels = plan.levels;
    for (; level < levels; ++level) {
      const int width = plan.code_bits[level];
      const int bits_bytes = BitBytes(width, count);
      const bool sparse = level == 0 && width == 1;
      if (!sparse && used + bits_bytes >= raw_bytes) break;
      const int escapes = EncodeLevel(shared, shared.plane, count, plan.symbols[level], width,
                                      sparse ? shared.bits : out + used, shared.plane);
      if (!sparse) {
        used += bits_bytes;
      } else if (escapes == 0) {
        mode = BlockMode::kConstant;
        break;
      } else {
        const int map_bytes = BitBytes(1, bits_bytes);
        set_bytes = EncodeLevel(shared, shared.bits, bits_bytes, 0, 1, out, shared.set);
        used = map_bytes + set_bytes;
        const uint8_t* tail = shared.set;
        uint8_t* to = out + map_bytes;
        int tail_bytes = set_bytes;
        if (used < bits_bytes) {
          mode = BlockMode::kSparse;
        } else {
          used = tail_bytes = bits_bytes;
          set_bytes = 0;
          tail = shared.bits;
          to = out;
        }
        JAXCCOMP_NO_UNROLL
        for (int i = Thread(); i < tail_bytes; i += kThreads) to[i] = tail[i];
      }
      if (Thread() == 0) {
        index[2 + 2 * level] = static_cast<uint8_t>(escapes);
        index[3 + 2 * level] = static_cast<uint8_t>(escapes >> 8);
      }
      count = escapes;
    }
    // Send the plane raw unless its levels and the last escapes together are shorter.
    if (mode != BlockMode::kConstant && (level < levels || used + count >= raw_bytes)) {
      mode = BlockMode::kRaw;
    }
    const bool coded = mode == BlockMode::kCoded || mode == BlockMode::kSparse;
    if (coded) {
      JAXCCOMP_NO_UNROLL
      for (int i = Thread(); i < count; i += kThreads) out[used + i] = shared.plane[i];
    }
    if (Thread() == 0) {
      const unsigned head = static_cast<unsigned>(mode) | (coded ? set_bytes << 2 : 0);
      index[0] = static_cast<uint8_t>(head);
      index[1] = static_cast<uint8_t>(head >> 8);
      for (int i = 2; !coded && i < 2 + 2 * levels; ++i) index[i] = 0;
    }
    return mode == BlockMode::kConstant ? 0 : coded ? used + count : raw_bytes;
  }

  // Encodes a level: writes the codes of `count` bytes to the bit planes `bits`, and the bytes without a code to
  // `escapes`, which may be `in`. Returns the number of escapes. All threads have synchronised when it returns.
  JAXCCOMP_DEVICE static int EncodeLevel(EncodeShared& shared, const uint8_t* in, int count,
                                         uint32_t symbols, int width, uint8_t* bits,
                                         uint8_t* escapes) {
    const int octets = (count + 7) >> 3;
    uint32_t v[kOctets][2], left = 0;   // left: the escapes, a byte for each octet
    if (WarpHas(octets, 0)) {
      if (width == 1) {
        left = EncodeCodes<1>(in, count, octets, symbols, bits, v);
      } else {
        left = EncodeCodes<2>(in, count, octets, symbols, bits, v);
      }
    }
    const uint32_t counts = CountBits(left);
    const Ranks ranks = RankOctets(counts, octets, shared.sums);
    JAXCCOMP_UNROLL
    for (int j = 0; j < kOctets; ++j) {
      if (!WarpHas(octets, j)) break;
      const uint32_t selector = shared.selectors[left >> (8 * j) & 255];
      const int n = static_cast<int>(counts >> (8 * j) & 15);
      uint32_t w[2] = {Permute(v[j][0], v[j][1], selector),
                       Permute(v[j][0], v[j][1], selector >> 16)};
      uint8_t* const at = escapes + ranks.before[j];
      JAXCCOMP_UNROLL
      for (int i = 0; i < 8; ++i) {
        if (i < n) at[i] = static_cast<uint8_t>(w[i / 4] >> (8 * (i % 4)));
      }
    }
    Sync();
    return static_cast<int>(ranks.total);
  }

  // Loads the thread's octets to `v`, and writes their codes of kWidth bits to the bit planes `bits`. Returns a mask of
  // the bytes without a code, a byte for each octet.
  template <int kWidth>
  JAXCCOMP_DEVICE static uint32_t EncodeCodes(const uint8_t* in, int count, int octets,
                                              uint32_t symbols, uint8_t* bits,
                                              uint32_t (*v)[2]) {
    const uint32_t s0 = Splat(symbols & 255), s1 = Splat(symbols >> 8 & 255);
    const uint32_t s2 = Splat(symbols >> 16 & 255);
    uint32_t left = 0;
    JAXCCOMP_UNROLL
    for (int j = 0; j < kOctets; ++j) {
      const int o = static_cast<int>(Thread()) + j * kThreads;
      if (o >= octets) break;
      LoadPair(in + 8 * o, v[j]);
      uint32_t low[2], high[2];
      JAXCCOMP_UNROLL
      for (int h = 0; h < 2; ++h) {
        const uint32_t n0 = NotZero(v[j][h] ^ s0);
        low[h] = high[h] = n0;
        if constexpr (kWidth == 2) {
          const uint32_t n1 = NotZero(v[j][h] ^ s1), n2 = NotZero(v[j][h] ^ s2);
          low[h] = n0 & (~n1 | n2);
          high[h] = n0 & (n1 | ~n2);
        }
      }
      const uint32_t missing = Missing(o, count);
      uint8_t* const at = bits + (o & ~7) * kWidth + (o & 7);
      uint32_t none = TopBits(low[0], low[1]) & ~missing;
      *at = static_cast<uint8_t>(none);
      if constexpr (kWidth == 2) {
        const uint32_t bit = TopBits(high[0], high[1]) & ~missing;
        at[StepOfBits(o, octets)] = static_cast<uint8_t>(bit);
        none &= bit;
      }
      left |= none << (8 * j);
    }
    return left;
  }
};

}  // namespace jaxccomp::cuda
