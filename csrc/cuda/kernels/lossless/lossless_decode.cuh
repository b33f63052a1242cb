// The last kernel of decoding. A thread block handles a block of the format: it decodes the coded planes in shared
// memory, from the last level to the first, and joins all planes to words.
#pragma once

#include "cuda/kernels/lossless/lossless_find.cuh"

namespace jaxccomp::cuda {

template <Layout layout>
struct alignas(16) DecodeShared {
  uint64_t sums[kWarps];
  ParsedBlock<layout> parsed;
  int32_t valid;
  alignas(16) uint8_t bits[kBitBytes];        // a sparse plane's first level
  alignas(16) uint8_t escapes[kPlaneBytes];   // results of odd levels; even levels write to the plane
};

// Scratch memory: the received block, at the same address modulo 16, then the decoded planes.
template <Layout layout>
inline constexpr int kStagedBytes =
    (static_cast<int>(kBlockWords) * Cutting<layout>::kWordBytes + 8 * kMaxPlanes + 2 * kPad + 15) /
    16 * 16;
template <Layout layout>
inline constexpr int kScratchBytes = kStagedBytes<layout> + Cutting<layout>::kPlanes * kPlaneBytes;
// Blocks of 8-byte words do not fit into shared memory.
template <Layout layout>
inline constexpr bool kScratchInShared = Cutting<layout>::kWordBytes <= 4;
template <Layout layout>
inline constexpr int kDecodeSharedBytes =
    static_cast<int>(sizeof(DecodeShared<layout>)) +
    (kScratchInShared<layout> ? kScratchBytes<layout> : 0);

template <Layout layout>
struct DecodeKernel {
  static constexpr int kLaunchThreads = kThreads;
  static constexpr int kMinBlocks = Cutting<layout>::kWordBytes <= 2 ? 2 : 1;

  const uint8_t* payload;
  int64_t words;
  const ParsedBlock<layout>* parsed;
  uint8_t* dst;
  int32_t* status;
  uint8_t* scratch;   // for each thread block, if it does not fit into shared memory
  bool vectors;

  static constexpr int kBytes = Cutting<layout>::kWordBytes;
  static constexpr int kPlanes = Cutting<layout>::kPlanes;
  using Shared = DecodeShared<layout>;

  JAXCCOMP_DEVICE void operator()(void* memory) const {
    auto& shared = *static_cast<Shared*>(memory);
    uint8_t* const own = kScratchInShared<layout>
                             ? static_cast<uint8_t*>(memory) + sizeof(DecodeShared<layout>)
                             : scratch + static_cast<int64_t>(Block()) * kScratchBytes<layout>;
    const int64_t blocks = (words + kBlockWords - 1) / kBlockWords;
    JAXCCOMP_NO_UNROLL
    for (int64_t block = Block(); block < blocks; block += Blocks()) {
      if (Thread() == 0) shared.valid = *status == 0;
      ReadParsed(shared, block);
      Sync();
      if (shared.valid == 0) return;
      const int64_t first = block * kBlockWords;
      const int n = static_cast<int>(words - first < kBlockWords ? words - first : kBlockWords);
      const uint8_t* const from = payload + shared.parsed.at;
      if (shared.parsed.stored != 0) {
        CopyBytes(dst + first * kBytes, from, n * kBytes);
      } else if (!DecodeBlock(shared, own, from, first, n)) {
        if (Thread() == 0) *status = 1;
      }
      Sync();
    }
  }

 private:
  JAXCCOMP_DEVICE void ReadParsed(Shared& shared, int64_t block) const {
    constexpr int kWords = sizeof(ParsedBlock<layout>) / 4;
    auto* const to = reinterpret_cast<uint8_t*>(&shared.parsed);
    auto* const from = reinterpret_cast<const uint8_t*>(parsed + block);
    if (Thread() < kWords) StoreAs(to + 4 * Thread(), LoadAs<uint32_t>(from + 4 * Thread()));
  }

  JAXCCOMP_DEVICE bool DecodeBlock(Shared& shared, uint8_t* own, const uint8_t* from,
                                   int64_t first, int n) const {
    const ParsedBlock<layout>& parsed = shared.parsed;
    int bytes = 0, coded_at = 0;
    for (int p = 0; p < kPlanes; ++p) {
      bytes += parsed.bytes[p];
      if (parsed.plans[p].levels == 0) coded_at += parsed.bytes[p];
    }
    uint8_t* const staged = own + (reinterpret_cast<uintptr_t>(from) & 15);
    Stage(staged, from, bytes);
    Sync();
    uint8_t* const planes = own + kStagedBytes<layout>;
    const uint8_t* at = staged + coded_at;
    JAXCCOMP_NO_UNROLL
    for (int p = 0; p < kPlanes; ++p) {
      const PlanePlan& plan = parsed.plans[p];
      if (plan.levels == 0) continue;
      if (IsCoded(parsed.entries[p]) &&
          !DecodePlane(shared, plan, parsed.entries[p], n, own, at, planes + p * kPlaneBytes)) {
        return false;
      }
      at += parsed.bytes[p];
    }
    int sources[kPlanes];
    FindPlanes(parsed, static_cast<int>(staged - own), coded_at, sources);
    uint8_t* to = dst + first * kBytes;
    const int whole = vectors ? n / 64 * 8 : 0;   // octets in whole groups
    const int thread = static_cast<int>(Thread());
    JAXCCOMP_NO_UNROLL
    for (int o = whole + thread; 8 * o < n; o += kThreads) {
      JoinOctet<false>(own, sources, o, n, to, o);
    }
    // A thread's octets have equal distances in memory.
    JAXCCOMP_NO_UNROLL
    for (int o = thread; o < whole; o += kThreads) {
      JoinOctet<true>(own, sources, o, n, to, thread);
      to += kThreads * 8 * kBytes;
    }
    return true;
  }

  // Offsets of the planes' bytes in `own`; for a constant plane its byte minus 256, which is negative.
  JAXCCOMP_DEVICE static void FindPlanes(const ParsedBlock<layout>& parsed, int raw, int coded_at,
                                         int* sources) {
    int coded = raw + coded_at;
    JAXCCOMP_UNROLL
    for (int p = 0; p < kPlanes; ++p) {
      const PlanePlan& plan = parsed.plans[p];
      const int bytes = parsed.bytes[p];
      if (plan.levels == 0) {
        sources[p] = raw;
        raw += bytes;
        continue;
      }
      sources[p] = IsCoded(parsed.entries[p]) ? kStagedBytes<layout> + p * kPlaneBytes
                   : bytes == 0               ? static_cast<int>(plan.symbols[0] & 255) - 256
                                              : coded;
      coded += bytes;
    }
  }

  JAXCCOMP_DEVICE static bool IsCoded(const PlaneEntry& entry) {
    return entry.mode == static_cast<int>(BlockMode::kCoded) ||
           entry.mode == static_cast<int>(BlockMode::kSparse);
  }

  // Copies to an address that is equal modulo 16.
  JAXCCOMP_DEVICE static void Stage(uint8_t* to, const uint8_t* from, int bytes) {
    const int thread = static_cast<int>(Thread());
    const int head = static_cast<int>(-reinterpret_cast<uintptr_t>(from) & 15);
    const int vectors = bytes < head ? 0 : (bytes - head) / 16;
    const int tail = head + 16 * vectors;
    if (thread < head && thread < bytes) to[thread] = from[thread];
    if (tail + thread < bytes) to[tail + thread] = from[tail + thread];
    for (int i = thread; i < vectors; i += kThreads) {
      StoreVector(to + head + 16 * i, LoadVector(from + head + 16 * i));
    }
  }

  // Decodes the levels of a plane, from the last to the first, to `plane`. Returns false if the counts of its entry
  // differ from its bits. If it returns true, all threads have synchronised.
  JAXCCOMP_DEVICE static bool DecodePlane(Shared& shared, const PlanePlan& plan,
                                          const PlaneEntry& entry, int n, const uint8_t* own,
                                          const uint8_t* at, uint8_t* plane) {
    const uint8_t* first = at;
    if (entry.mode == static_cast<int>(BlockMode::kSparse)) {
      const int bits_bytes = BitBytes(1, n), map_bytes = BitBytes(1, bits_bytes);
      if (!DecodeLevel(shared, at, bits_bytes, 0, 1, at + map_bytes,
                       static_cast<int>(at + map_bytes - own) & 3, shared.bits,
                       entry.set_bytes)) {
        return false;
      }
      first = shared.bits;
      at += map_bytes + entry.set_bytes;
    } else {
      at += BitBytes(plan.code_bits[0], n);
    }
    const int levels = plan.levels;
    for (int l = 1; l < levels; ++l) at += BitBytes(plan.code_bits[l], entry.escapes[l - 1]);
    const uint8_t* escapes = at;
    int off = static_cast<int>(at - own) & 3;
    JAXCCOMP_NO_UNROLL
    for (int l = levels - 1; l >= 0; --l) {
      const int count = l == 0 ? n : entry.escapes[l - 1];
      if (l > 0) at -= BitBytes(plan.code_bits[l], count);
      uint8_t* const out = (l & 1) != 0 ? shared.escapes : plane;
      if (!DecodeLevel(shared, l == 0 ? first : at, count, plan.symbols[l], plan.code_bits[l],
                       escapes, off, out, entry.escapes[l])) {
        return false;
      }
      escapes = out;
      off = 0;
    }
    return true;
  }

  // Decodes a level: writes `count` bytes to `out`, which are symbols, or consecutive bytes of `escapes`, whose address
  // is `off` modulo 4. Returns false unless the codes use exactly `expected` escapes.
  JAXCCOMP_DEVICE static bool DecodeLevel(Shared& shared, const uint8_t* bits, int count,
                                          uint32_t symbols, int width, const uint8_t* escapes,
                                          int off, uint8_t* out, int expected) {
    return width == 1 ? DecodeCodes<1>(shared, bits, count, symbols, escapes - off, off, out, expected)
                      : DecodeCodes<2>(shared, bits, count, symbols, escapes - off, off, out, expected);
  }

  template <int kWidth>
  JAXCCOMP_DEVICE static bool DecodeCodes(Shared& shared, const uint8_t* bits, int count,
                                          uint32_t symbols, const uint8_t* escapes, int off,
                                          uint8_t* out, int expected) {
    const int octets = (count + 7) >> 3;
    uint32_t low = 0, high = 0;   // bits of the codes, a byte for each octet
    if (WarpHas(octets, 0)) {
      JAXCCOMP_UNROLL
      for (int j = 0; j < kOctets; ++j) {
        const int o = static_cast<int>(Thread()) + j * kThreads;
        if (o >= octets) break;
        const uint32_t missing = Missing(o, count);
        const uint8_t* const at = bits + (o & ~7) * kWidth + (o & 7);
        low |= (*at & ~missing) << (8 * j);
        if constexpr (kWidth == 2) high |= (at[StepOfBits(o, octets)] & ~missing) << (8 * j);
      }
    }
    const Ranks ranks =
        RankOctets(CountBits(kWidth == 2 ? low & high : low), octets, shared.sums);
    // Check before reading escapes: there may be fewer than the codes use.
    if (static_cast<int>(ranks.total) != expected) return false;
    JAXCCOMP_UNROLL
    for (int j = 0; j < kOctets; ++j) {
      const int o = static_cast<int>(Thread()) + j * kThreads;
      if (o >= octets) break;
      uint32_t escaped = BitsToNibbles(low >> (8 * j) & 255), code = 0;
      if constexpr (kWidth == 2) {
        const uint32_t upper = BitsToNibbles(high >> (8 * j) & 255);
        code = escaped | upper << 1;
        escaped &= upper;
      }
      const uint32_t all = escaped * 15;
      // For each byte a nibble: its symbol's number, or for an escape 4 plus its place in its half of the octet.
      const uint32_t pick = (code & ~all) | (all & 0x76547654u);
      // For each byte a nibble: the number of escapes before it in the octet.
      const uint32_t which = escaped * 0x11111110u;
      uint32_t next[2], v[2];
      LoadOctet(escapes, off + static_cast<int>(ranks.before[j]), next);
      v[0] = Permute(symbols, Permute(next[0], next[1], which), pick);
      v[1] = Permute(symbols, Permute(next[0], next[1], which >> 16), pick >> 16);
      StorePair(out + 8 * o, v);
    }
    Sync();
    return true;
  }

  // Joins octet o, and writes it as octet `place` of `to`.
  template <bool kVectors>
  JAXCCOMP_DEVICE static void JoinOctet(const uint8_t* own, const int* sources, int o, int n,
                                        uint8_t* to, int place) {
    uint32_t cut[kPlanes][2], w[Cutting<layout>::kRegisters];
    JAXCCOMP_UNROLL
    for (int p = 0; p < kPlanes; ++p) {
      const int at = sources[p], width = WidthOf<layout>(p);
      if (at < 0) {
        cut[p][0] = cut[p][1] = Splat(at & 255);
      } else if (width == 8 ? (at & 7) == 0 : at >= kStagedBytes<layout>) {
        LoadPair(own + at + 8 * o, cut[p]);
      } else {
        LoadRaw(own, at, o, n, width, cut[p]);
      }
    }
    Join<layout>(cut, w);
    StoreWords<layout, kVectors>(to, place, n, w);
  }

  JAXCCOMP_DEVICE static void LoadRaw(const uint8_t* own, int at, int o, int n, int width,
                                      uint32_t* v) {
    if (width == 8) {
      LoadOctet(own + 8 * o, at, v);
      return;
    }
    const BitPlace place = PlaceOfBits(o, width, n);
    v[0] = v[1] = 0;
    for (int b = 0; b < width; ++b) UnpackBit(own[at + place.at + b * place.step], b, v);
  }
};

}  // namespace jaxccomp::cuda
