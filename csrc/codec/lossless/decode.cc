#include "codec/lossless/decode.h"

#include <algorithm>
#include <cstring>
#include <string>

namespace jaxccomp::lossless {
namespace {

// For a few bytes: cheaper than a call of memcpy.
void CopyPadded(uint8_t* dst, const std::byte* src, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += kPadBytes) std::memcpy(dst + i, src + i, kPadBytes);
}

const uint8_t* Bytes(const std::byte* at) { return reinterpret_cast<const uint8_t*>(at); }

}  // namespace

Status Decoder::Invalid(const char* what) const {
  return {Code::kDataLoss, std::string("codec 'lossless': ") + what + " at byte " +
                               std::to_string(at_ - begin_) + " of " +
                               std::to_string(end_ - begin_)};
}

Status Decoder::Open(Layout layout, std::span<const std::byte> payload, int64_t words,
                     bool delta) {
  layout_ = layout;
  begin_ = at_ = payload.data();
  end_ = begin_ + payload.size();
  remaining_ = words;
  segment_remaining_ = 0;
  std::fill(std::begin(filled_), std::end(filled_), -1);
  if (!Has(kChunkHeaderBytes)) return Invalid("the payload ends within its header");
  const auto version = static_cast<int>(at_[0]), flags = static_cast<int>(at_[2]);
  if (version != kVersion) return Invalid("a format of another version, or none,");
  if (static_cast<Layout>(at_[1]) != layout) return Invalid("values of another dtype");
  if ((flags & ~kFlagDelta) != 0 || at_[3] != std::byte{0}) return Invalid("unknown flags");
  if (((flags & kFlagDelta) != 0) != delta) {
    return Invalid(delta ? "a reference was given, but the values are whole,"
                         : "values are differences to a reference, and none was given,");
  }
  if (LoadLittleEndian(at_ + 4, 4) != (static_cast<uint64_t>(words) & 0xffffffff)) {
    return Invalid("another number of values");
  }
  at_ += kChunkHeaderBytes;
  if (words == 0 && at_ != end_) return Invalid("bytes after the last value");
  return Status::Ok();
}

Status Decoder::Next(void* dst, const void* ref) {
  const int64_t n = next_words();
  if (segment_remaining_ == 0 && !StartSegment()) return Invalid("a segment's header is not valid");
  const bool ok = kind_ == SegmentKind::kStored ? NextStored(dst, n) : NextPlanes(dst, ref, n);
  if (!ok) return Invalid("a block is not valid");
  remaining_ -= n;
  segment_remaining_ -= n;
  if (remaining_ == 0 && at_ != end_) return Invalid("bytes after the last value");
  return Status::Ok();
}

bool Decoder::StartSegment() {
  segment_remaining_ = std::min(remaining_, kSegmentWords);
  if (!Has(1)) return false;
  const auto kind = static_cast<int>(*at_++);
  kind_ = static_cast<SegmentKind>(kind);
  if (kind_ == SegmentKind::kStored) return Has(segment_remaining_ * Info(layout_).word_bytes);
  if (kind_ != SegmentKind::kPlanes) return false;
  int64_t block_index_bytes = 0;
  for (int p = 0; p < Info(layout_).planes; ++p) {
    if (!ReadPlaneHeader(p)) return false;
    if (headers_[p].coded()) block_index_bytes += EntryBytes(headers_[p].levels());
  }
  const int64_t blocks = (segment_remaining_ + kBlockWords - 1) / kBlockWords;
  const int64_t index_bytes = blocks * block_index_bytes;
  if (!Has(index_bytes)) return false;
  index_ = at_;
  at_ += index_bytes;
  return true;
}

bool Decoder::ReadPlaneHeader(int p) {
  if (!Has(kDescriptorBytes)) return false;
  PlaneHeader header;
  const auto descriptor = static_cast<unsigned>(LoadLittleEndian(at_, kDescriptorBytes));
  at_ += kDescriptorBytes;
  if (descriptor >> (2 * kMaxLevels) != 0) return false;
  for (int level = 0; level < kMaxLevels; ++level) {
    const unsigned code_bits = descriptor >> (2 * level) & 3;
    if (code_bits == 3) return false;
    if (code_bits == 0) {
      if (descriptor >> (2 * level) != 0) return false;
      break;
    }
    header.code_bits[level] = static_cast<uint8_t>(code_bits);
    const int symbols = SymbolsOfLevel(static_cast<int>(code_bits));
    if (!Has(symbols)) return false;
    std::memcpy(header.symbols[level], at_, symbols);
    at_ += symbols;
  }
  headers_[p] = header;
  return true;
}

// Reads plane p's entry, and checks that its numbers are possible for a block of n words.
bool Decoder::ReadEntry(int p, int64_t n, BlockEntry& entry) {
  const PlaneHeader& header = headers_[p];
  const uint64_t mode = LoadLittleEndian(index_, 2);
  entry.mode = static_cast<BlockMode>(mode & 3);
  entry.set_bytes = static_cast<int64_t>(mode >> 2);
  uint64_t any = mode >> 2;
  const int levels = header.levels();
  for (int l = 0; l < levels; ++l) {
    const uint64_t escapes = LoadLittleEndian(index_ + 2 + 2 * l, 2);
    any |= escapes;
    entry.escapes[l] = static_cast<int64_t>(escapes);
  }
  index_ += EntryBytes(levels);
  if (entry.mode == BlockMode::kConstant || entry.mode == BlockMode::kRaw) return any == 0;
  if (entry.mode == BlockMode::kCoded) {
    if (entry.set_bytes != 0) return false;
  } else if (header.code_bits[0] != 1 || entry.set_bytes > BitPlaneBytes(1, n)) {
    return false;
  }
  int64_t maximum = n;
  for (int l = 0; l < levels; ++l) {
    if (entry.escapes[l] > maximum) return false;
    maximum = entry.escapes[l];
  }
  return true;
}

bool Decoder::NextStored(void* dst, int64_t n) {
  const int64_t bytes = n * Info(layout_).word_bytes;
  std::memcpy(dst, at_, bytes);   // StartSegment has checked that the whole segment is there
  at_ += bytes;
  return true;
}

bool Decoder::NextPlanes(void* dst, const void* ref, int64_t n) {
  const LayoutInfo& info = Info(layout_);
  BlockEntry entries[kMaxPlanes];
  int64_t plane_bytes[kMaxPlanes];
  int64_t block_bytes = 0;
  for (int p = 0; p < info.planes; ++p) {
    plane_bytes[p] = RawPlaneBytes(info.width[p], n);
    if (headers_[p].coded()) {
      BlockEntry& entry = entries[p];
      if (!ReadEntry(p, n, entry)) return false;
      if (entry.mode == BlockMode::kConstant) {
        plane_bytes[p] = 0;
      } else if (entry.mode != BlockMode::kRaw) {
        int64_t bytes = CodedPlaneBytes(headers_[p], entry, n);
        if (entry.mode == BlockMode::kSparse) {
          const int64_t bits_bytes = BitPlaneBytes(1, n);
          bytes += BitPlaneBytes(1, bits_bytes) + entry.set_bytes - bits_bytes;
        }
        // Encoders send a plane raw if its code is not shorter. The check also bounds a block's bytes.
        if (bytes >= plane_bytes[p]) return false;
        plane_bytes[p] = bytes;
      }
    }
    block_bytes += plane_bytes[p];
  }
  if (!Has(block_bytes)) return false;

  const std::byte* at = at_;
  if (!Has(block_bytes + kPadBytes)) {
    std::memcpy(workspace_.tail, at_, block_bytes);
    at = workspace_.tail;
  }
  at_ += block_bytes;

  const uint8_t* planes[kMaxPlanes];
  for (int p = 0; p < info.planes; ++p) {
    if (headers_[p].coded()) continue;
    planes[p] = Bytes(at);
    if (info.width[p] != 8) {
      kernels_.unpack(Bytes(at), n, info.width[p], workspace_.planes[p]);
      planes[p] = workspace_.planes[p];
      filled_[p] = -1;
    }
    at += plane_bytes[p];
  }
  // decode_merge, if the table has it, also decodes the last plane's first level.
  const int last = info.planes - 1;
  const auto fused = kernels_.decode_merge[static_cast<int>(layout_)];
  const bool fuse = fused != nullptr && headers_[last].code_bits[0] == 2 && n % 64 == 0 &&
                    entries[last].mode == BlockMode::kCoded;
  for (int p = 0; p < info.planes; ++p) {
    if (!headers_[p].coded()) continue;
    planes[p] = workspace_.planes[p];
    if (p == last && fuse) {
      if (!DecodeEscapes(p, entries[p], n, 1, at)) return false;
      return fused(dst, ref, n, planes, headers_[p].symbols[0], Bytes(at),
                   workspace_.escapes[0]) == entries[p].escapes[0];
    }
    if (entries[p].mode == BlockMode::kRaw && info.width[p] == 8) {
      planes[p] = Bytes(at);
    } else if (!DecodePlane(p, entries[p], n, at)) {
      return false;
    }
    at += plane_bytes[p];
  }
  kernels_.merge[static_cast<int>(layout_)](dst, ref, n, planes);
  return true;
}

// Decodes plane p, whose bytes are all at `at`, into the workspace. False if its entry's counts do not
// match its bits.
bool Decoder::DecodePlane(int p, const BlockEntry& entry, int64_t n, const std::byte* at) {
  const PlaneHeader& header = headers_[p];
  uint8_t* const out = workspace_.planes[p];
  if (entry.mode == BlockMode::kConstant) {
    const int symbol = header.symbols[0][0];
    if (filled_[p] != symbol) std::memset(out, symbol, kBlockWords);
    filled_[p] = symbol;
    return true;
  }
  filled_[p] = -1;
  if (entry.mode == BlockMode::kRaw) {
    kernels_.unpack(Bytes(at), n, Info(layout_).width[p], out);
    return true;
  }

  return DecodeEscapes(p, entry, n, 0, at);
}

// Decodes the levels of plane p from the last to `first`: to workspace_.escapes[first - 1], or to
// the plane itself.
bool Decoder::DecodeEscapes(int p, const BlockEntry& entry, int64_t n, int first,
                            const std::byte* at) {
  const PlaneHeader& header = headers_[p];
  const uint8_t* bits[kMaxLevels];
  int64_t counts[kMaxLevels + 1];
  int levels = 0;
  counts[0] = n;
  for (; levels < kMaxLevels && header.code_bits[levels] != 0; ++levels) {
    bits[levels] = Bytes(at);
    counts[levels + 1] = entry.escapes[levels];
    if (levels == 0 && entry.mode == BlockMode::kSparse) {
      constexpr uint8_t kZero[3] = {};
      const int64_t bits_bytes = BitPlaneBytes(1, n);
      const int64_t map_bytes = BitPlaneBytes(1, bits_bytes);
      CopyPadded(workspace_.escapes[0], at + map_bytes, entry.set_bytes);
      if (kernels_.decode_level[1](Bytes(at), bits_bytes, kZero, workspace_.escapes[0],
                                   workspace_.bits) != entry.set_bytes) {
        return false;
      }
      bits[0] = workspace_.bits;
      at += map_bytes + entry.set_bytes;
    } else {
      at += BitPlaneBytes(header.code_bits[levels], counts[levels]);
    }
  }
  // Copy to padded memory: with invalid bits the kernel may read past the escapes.
  CopyPadded(workspace_.escapes[levels - 1], at, counts[levels]);
  for (int l = levels - 1; l >= first; --l) {
    uint8_t* const into = l == 0 ? workspace_.planes[p] : workspace_.escapes[l - 1];
    if (kernels_.decode_level[header.code_bits[l]](bits[l], counts[l], header.symbols[l],
                                                   workspace_.escapes[l],
                                                   into) != counts[l + 1]) {
      return false;
    }
  }
  return true;
}

}  // namespace jaxccomp::lossless
