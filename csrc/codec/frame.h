// Frames: self-describing encoded tensors, for files and messages between programs. The bytes:
// docs/wire_format.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codec/codec.h"

namespace jaxccomp {

// The dtypes that a frame can name. One-byte types of JAX and ml_dtypes that the engine does not
// know are moved as kOpaque8.
struct FrameDType {
  uint8_t number;   // on the wire
  std::string_view name;
  DType dtype;
};
std::span<const FrameDType> FrameDTypes();

inline constexpr int64_t kMaxChunkValues = int64_t{1} << 24;

// The decoded header of a frame.
struct FrameHeader {
  std::shared_ptr<const Codec> codec;
  const FrameDType* type = nullptr;
  std::vector<int64_t> shape;
  int64_t count = 1;           // values: the product of the shape
  int64_t chunk_values = 0;    // the last chunk may be shorter
  bool checksum = false;       // CRC-32C of each payload, and of header and index
  bool delta = false;          // encoded against a reference, which decoding needs

  int64_t chunks() const { return (count + chunk_values - 1) / chunk_values; }
  int64_t value_bytes() const { return count * SizeBytes(type->dtype); }
};

// Checks the arguments and counts the values. kInvalidArgument or kUnimplemented.
Result<FrameHeader> MakeFrameHeader(std::string_view spec, std::string_view dtype,
                                    std::vector<int64_t> shape, int64_t chunk_values,
                                    bool checksum, bool delta);

// An upper bound of the frame's bytes, and the room that EncodeFrame needs in `dst`.
int64_t MaxFrameBytes(const FrameHeader& header);

// Returns the bytes written. `ref` is not null if header.delta.
Result<int64_t> EncodeFrame(const FrameHeader& header, const void* values, const void* ref,
                            RandomKey key, std::span<std::byte> dst, Workspace& workspace);

// Reads header and index of an untrusted frame. header.value_bytes() never exceeds the bytes that the
// codec could have encoded as a payload of this size.
Result<FrameHeader> ReadFrameHeader(std::span<const std::byte> frame);

// Decodes all values. `header` is the result of ReadFrameHeader(frame). kDataLoss: the frame is
// invalid; kFailedPrecondition: `ref` is not the reference of the encoding.
Status DecodeFrame(const FrameHeader& header, std::span<const std::byte> frame, const void* ref,
                   void* values, Workspace& workspace);

}  // namespace jaxccomp
