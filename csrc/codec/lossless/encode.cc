#include "codec/lossless/encode.h"

#include <algorithm>
#include <cstring>

#include "codec/lossless/analyze.h"
#include "codec/lossless/format.h"

namespace jaxccomp::lossless {
namespace {

constexpr int64_t kNotEncoded = -1;

// For a few bytes: cheaper than a call of memcpy.
void CopyPadded(void* dst, const void* src, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += kPadBytes) {
    std::memcpy(static_cast<std::byte*>(dst) + i, static_cast<const std::byte*>(src) + i,
                kPadBytes);
  }
}

uint8_t* Bytes(std::byte* at) { return reinterpret_cast<uint8_t*>(at); }

// Words and their reference, which may be null.
struct Source {
  const std::byte* src;
  const std::byte* ref;

  Source From(int64_t offset_bytes) const {
    return {src + offset_bytes, ref == nullptr ? nullptr : ref + offset_bytes};
  }
};

class SegmentEncoder {
 public:
  SegmentEncoder(const Kernels& kernels, Layout layout, Workspace& workspace)
      : kernels_(kernels), layout_(layout), info_(Info(layout)), workspace_(workspace) {}

  // Writes one segment and returns its end.
  std::byte* Encode(Source source, int64_t words, std::byte* dst) {
    const int64_t bytes = words * info_.word_bytes;
    if (Analyze(source, words)) {
      std::byte* const end = EncodePlanes(source, words, dst);
      if (end - dst < 1 + bytes) return end;
    }
    *dst++ = static_cast<std::byte>(SegmentKind::kStored);
    std::memcpy(dst, source.src, bytes);
    return dst + bytes;
  }

 private:
  // Samples every plane; returns whether any is worth coding.
  bool Analyze(Source source, int64_t words) {
    constexpr int64_t kRun = 64, kRuns = 16;   // kRuns and 5 have no common factor
    uint8_t* planes[kMaxPlanes];
    int64_t sampled = 0;
    const int64_t stride = std::max(words / kRuns / 64 * 64, kRun);
    // Distant runs first, so that the first kGlance samples cover the segment.
    for (int64_t run = 0; run < kRuns; ++run) {
      const int64_t begin = run * 5 % kRuns * stride;
      const int64_t n = std::min(kRun, words - begin);
      if (n <= 0) continue;
      for (int p = 0; p < info_.planes; ++p) planes[p] = workspace_.planes[p] + sampled;
      const Source from = source.From(begin * info_.word_bytes);
      kernels_.split[static_cast<int>(layout_)](from.src, from.ref, n, planes);
      sampled += n;
    }
    coded_ = 0;
    index_bytes_ = 0;
    for (int p = 0; p < info_.planes; ++p) {
      headers_[p] = AnalyzePlane(kernels_, workspace_.planes[p], sampled, info_.width[p]);
      coded_ += headers_[p].coded();
      if (headers_[p].coded()) index_bytes_ += EntryBytes(headers_[p].levels());
    }
    return coded_ > 0;
  }

  std::byte* EncodePlanes(Source source, int64_t words, std::byte* dst) {
    *dst++ = static_cast<std::byte>(SegmentKind::kPlanes);
    dst = WriteHeaders(dst);
    std::byte* index = dst;
    dst += (words + kBlockWords - 1) / kBlockWords * index_bytes_;
    for (int64_t begin = 0; begin < words; begin += kBlockWords) {
      const int64_t n = std::min(kBlockWords, words - begin);
      dst = EncodeBlock(source.From(begin * info_.word_bytes), n, index, dst);
      index += index_bytes_;
    }
    return dst;
  }

  std::byte* WriteHeaders(std::byte* dst) const {
    for (int p = 0; p < info_.planes; ++p) {
      const PlaneHeader& header = headers_[p];
      unsigned descriptor = 0;
      for (int l = 0; l < kMaxLevels; ++l) descriptor |= header.code_bits[l] << (2 * l);
      StoreLittleEndian(dst, descriptor, kDescriptorBytes);
      dst += kDescriptorBytes;
      for (int l = 0; l < kMaxLevels; ++l) {
        for (int s = 0; s < SymbolsOfLevel(header.code_bits[l]); ++s) {
          *dst++ = static_cast<std::byte>(header.symbols[l][s]);
        }
      }
    }
    return dst;
  }

  std::byte* EncodeBlock(Source source, int64_t n, std::byte* index, std::byte* dst) {
    uint8_t* planes[kMaxPlanes];
    // Raw planes of whole bytes are split directly into the output.
    std::byte* at = dst;
    for (int p = 0; p < info_.planes; ++p) {
      const bool in_place = !headers_[p].coded() && info_.width[p] == 8;
      planes[p] = in_place ? Bytes(at) : workspace_.planes[p];
      if (!headers_[p].coded()) at += RawPlaneBytes(info_.width[p], n);
    }
    // The same pass encodes the last plane's first level. If no other plane is coded, the output position of the last
    // plane is known already, and the pass writes there.
    const int last = info_.planes - 1;
    const auto fused = kernels_.split_encode[static_cast<int>(layout_)];
    const bool fuse = fused != nullptr && headers_[last].code_bits[0] == 2 && n % 64 == 0;
    int64_t first_escapes = kNotEncoded;
    if (fuse) {
      uint8_t* const bits = coded_ == 1 ? Bytes(at) : workspace_.first_bits;
      first_escapes = fused(source.src, source.ref, n, planes, headers_[last].symbols[0], bits,
                            workspace_.first_escapes);
    } else {
      kernels_.split[static_cast<int>(layout_)](source.src, source.ref, n, planes);
    }
    at = dst;
    for (int p = 0; p < info_.planes; ++p) {
      if (headers_[p].coded()) continue;
      if (info_.width[p] != 8) PackKeeping(planes[p], n, info_.width[p], at);
      at += RawPlaneBytes(info_.width[p], n);
    }
    for (int p = 0; p < info_.planes; ++p) {
      if (!headers_[p].coded()) continue;
      BlockEntry entry;
      std::byte* const end = EncodePlane(p, n, p == last ? first_escapes : kNotEncoded, entry, at);
      if (entry.mode != BlockMode::kRaw) {
        at = end;
      } else {
        // The fused pass did not write the plane: split again. This is rare.
        if (p == last && fuse) {
          kernels_.split[static_cast<int>(layout_)](source.src, source.ref, n, planes);
        }
        if (info_.width[p] == 8) {
          std::memcpy(at, planes[p], n);
        } else {
          kernels_.pack(planes[p], n, info_.width[p], Bytes(at));
        }
        at += RawPlaneBytes(info_.width[p], n);
      }
      const int levels = headers_[p].levels();
      WriteEntry(entry, levels, index);
      index += EntryBytes(levels);
    }
    return at;
  }

  // Packs without overwriting the bytes after the plane: another plane may be there.
  void PackKeeping(const uint8_t* plane, int64_t n, int width, std::byte* dst) {
    uint8_t* const packed = Bytes(workspace_.tail);
    kernels_.pack(plane, n, width, packed);
    std::memcpy(dst, packed, BitPlaneBytes(width, n));
  }

  // Writes the coded form of plane p and its entry, and returns its end. If the raw plane is smaller, the caller
  // replaces the coded form. `first_escapes`: the number of the first level's escapes in the workspace, or
  // kNotEncoded.
  std::byte* EncodePlane(int p, int64_t n, int64_t first_escapes, BlockEntry& entry,
                         std::byte* dst) {
    const PlaneHeader& header = headers_[p];
    const int64_t raw_bytes = RawPlaneBytes(info_.width[p], n);
    const uint8_t* in = workspace_.planes[p];
    if (header.code_bits[0] == 1 && IsFilledWith(in, n, header.symbols[0][0])) {
      entry.mode = BlockMode::kConstant;
      return dst;
    }
    entry.mode = BlockMode::kCoded;
    std::byte* at = dst;
    int64_t count = n;
    for (int level = 0; level < kMaxLevels && header.code_bits[level] != 0; ++level) {
      const int code_bits = header.code_bits[level];
      const int64_t bits_bytes = BitPlaneBytes(code_bits, count);
      uint8_t* escapes = workspace_.escapes[level];
      if (level == 0 && first_escapes != kNotEncoded) {
        if (coded_ > 1) std::memcpy(at, workspace_.first_bits, bits_bytes);
        escapes = workspace_.first_escapes;
        entry.escapes[0] = first_escapes;
        at += bits_bytes;
      } else if (level == 0 && code_bits == 1) {
        entry.escapes[0] =
            kernels_.encode_level[1](in, count, header.symbols[0], workspace_.bits, escapes);
        at = WriteSparse(bits_bytes, at, entry);
      } else {
        entry.escapes[level] = kernels_.encode_level[code_bits](in, count, header.symbols[level],
                                                                Bytes(at), escapes);
        at += bits_bytes;
      }
      in = escapes;
      count = entry.escapes[level];
    }
    if (at - dst + count >= raw_bytes) {
      entry = {};
      entry.mode = BlockMode::kRaw;
      return dst;
    }
    CopyPadded(at, in, count);
    return at + count;
  }

  static bool IsFilledWith(const uint8_t* bytes, int64_t n, uint8_t byte) {
    return bytes[0] == byte && std::memcmp(bytes, bytes + 1, n - 1) == 0;
  }

  // Writes the first level's bits or, if shorter, their sparse form: a bit per byte, and the nonzero bytes, like
  // another level with the symbol 0.
  std::byte* WriteSparse(int64_t bits_bytes, std::byte* at, BlockEntry& entry) {
    constexpr uint8_t kZero[3] = {};
    uint8_t* const set = workspace_.escapes[kMaxLevels - 1];
    const int64_t map_bytes = BitPlaneBytes(1, bits_bytes);
    const int64_t set_bytes =
        kernels_.encode_level[1](workspace_.bits, bits_bytes, kZero, Bytes(at), set);
    if (map_bytes + set_bytes >= bits_bytes) {
      std::memcpy(at, workspace_.bits, bits_bytes);
      return at + bits_bytes;
    }
    entry.mode = BlockMode::kSparse;
    entry.set_bytes = set_bytes;
    std::memcpy(at + map_bytes, set, set_bytes);
    return at + map_bytes + set_bytes;
  }

  static void WriteEntry(const BlockEntry& entry, int levels, std::byte* at) {
    StoreLittleEndian(at, static_cast<uint64_t>(entry.mode) | entry.set_bytes << 2, 2);
    for (int l = 0; l < levels; ++l) StoreLittleEndian(at + 2 + 2 * l, entry.escapes[l], 2);
  }

  const Kernels& kernels_;
  const Layout layout_;
  const LayoutInfo& info_;
  Workspace& workspace_;
  PlaneHeader headers_[kMaxPlanes];
  int coded_ = 0;
  int64_t index_bytes_ = 0;   // of a block
};

}  // namespace

int64_t EncodeBoundBytes(Layout layout, int64_t words) {
  // A block may need more room during encoding than afterwards: a coded plane up to 20 bits per byte,
  // before it is replaced by the raw plane.
  const int64_t block = std::min(words, kBlockWords);
  const int64_t segment_blocks = (std::min(words, kSegmentWords) + kBlockWords - 1) / kBlockWords;
  const int planes = Info(layout).planes;
  const int64_t header_bytes =
      kDescriptorBytes + kMaxSymbols + segment_blocks * EntryBytes(kMaxLevels);
  const int64_t slack = 2 * block + planes * (header_bytes + 8) + 4 * kPadBytes;
  const int64_t segments = (words + kSegmentWords - 1) / kSegmentWords;
  return kChunkHeaderBytes + segments + words * Info(layout).word_bytes + slack;
}

int64_t MinEncodedBytes(Layout layout, int64_t words) {
  // A segment of planes has a byte for its kind, and for each plane the code widths, a symbol and an
  // entry per block. A stored segment has a byte and its words, which may be shorter.
  const int64_t planes = Info(layout).planes;
  const auto minimum = [&](int64_t n) {
    const int64_t blocks = (n + kBlockWords - 1) / kBlockWords;
    return std::min(1 + n * Info(layout).word_bytes,
                    1 + planes * (kDescriptorBytes + 1 + blocks * EntryBytes(1)));
  };
  const int64_t rest = words % kSegmentWords;
  return kChunkHeaderBytes + words / kSegmentWords * minimum(kSegmentWords) +
         (rest > 0 ? minimum(rest) : 0);
}

int64_t Encode(const Kernels& kernels, Layout layout, const void* src, const void* ref,
               int64_t words, std::byte* dst, Workspace& workspace) {
  std::byte* at = dst;
  *at++ = static_cast<std::byte>(kVersion);
  *at++ = static_cast<std::byte>(layout);
  *at++ = static_cast<std::byte>(ref != nullptr ? kFlagDelta : 0);
  *at++ = std::byte{0};
  StoreLittleEndian(at, static_cast<uint64_t>(words), 4);
  at += 4;
  SegmentEncoder segment(kernels, layout, workspace);
  const Source source = {static_cast<const std::byte*>(src), static_cast<const std::byte*>(ref)};
  for (int64_t begin = 0; begin < words; begin += kSegmentWords) {
    const int64_t n = std::min(kSegmentWords, words - begin);
    at = segment.Encode(source.From(begin * Info(layout).word_bytes), n, at);
  }
  return at - dst;
}

}  // namespace jaxccomp::lossless
