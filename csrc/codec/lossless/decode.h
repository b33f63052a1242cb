// The decoder: chunk payload to values, a block at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/lossless/format.h"
#include "codec/lossless/kernels.h"
#include "codec/lossless/workspace.h"
#include "common/status.h"

namespace jaxccomp::lossless {

// Reads an untrusted payload. Open and Next return kDataLoss for an invalid encoding; call nothing
// else afterwards. Altered bytes that are still valid can only be found by a frame's checksum.
//
//   Decoder decoder(kernels, workspace);
//   decoder.Open(layout, payload, words, delta);
//   while (decoder.next_words() > 0) decoder.Next(dst, ref);   // at most kBlockWords at a time
class Decoder {
 public:
  Decoder(const Kernels& kernels, Workspace& workspace)
      : kernels_(kernels), workspace_(workspace) {}

  // `delta`: the caller has a reference; then the payload must have been encoded with one.
  Status Open(Layout layout, std::span<const std::byte> payload, int64_t words, bool delta);

  // The words of the next block; 0 at the end.
  int64_t next_words() const { return remaining_ < kBlockWords ? remaining_ : kBlockWords; }

  // Decodes the next block to `dst`; `ref`: the reference's words of this block, or null.
  Status Next(void* dst, const void* ref);

 private:
  bool StartSegment();
  bool ReadPlaneHeader(int p);
  bool ReadEntry(int p, int64_t n, BlockEntry& entry);
  bool NextStored(void* dst, int64_t n);
  bool NextPlanes(void* dst, const void* ref, int64_t n);
  bool DecodePlane(int p, const BlockEntry& entry, int64_t n, const std::byte* at);
  bool DecodeEscapes(int p, const BlockEntry& entry, int64_t n, int first, const std::byte* at);
  bool Has(int64_t bytes) const { return end_ - at_ >= bytes; }
  Status Invalid(const char* what) const;

  const Kernels& kernels_;
  Workspace& workspace_;
  Layout layout_ = Layout::kBytes1;
  const std::byte* begin_ = nullptr;
  const std::byte* at_ = nullptr;
  const std::byte* end_ = nullptr;
  int64_t remaining_ = 0;           // words of the chunk
  int64_t segment_remaining_ = 0;   // words of the segment
  SegmentKind kind_ = SegmentKind::kStored;
  PlaneHeader headers_[kMaxPlanes];
  // The byte that fills a plane of the workspace, or -1.
  int filled_[kMaxPlanes];
  const std::byte* index_ = nullptr;
};

}  // namespace jaxccomp::lossless
