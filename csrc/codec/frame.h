// Frames: encoded tensors that say by themselves what they are, for files and messages between
// programs. docs/wire_format.md has the bytes.
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

// The types that a frame can name. Those of one byte that only JAX and ml_dtypes know are moved as
// kOpaque8.
struct FrameDType {
  uint8_t number;   // on the wire
  std::string_view name;
  DType dtype;
};
std::span<const FrameDType> FrameDTypes();

inline constexpr int64_t kMostChunkValues = int64_t{1} << 24;

// What a frame says of itself.
struct FrameHeader {
  std::shared_ptr<const Codec> codec;
  const FrameDType* type = nullptr;
  std::vector<int64_t> shape;
  int64_t count = 1;           // of values: the product of the shape
  int64_t chunk_values = 0;    // but for the last chunk
  bool checksum = false;       // CRC-32C of each payload, and of header and index
  bool delta = false;          // made with a reference, whose values must be at hand

  int64_t chunks() const { return (count + chunk_values - 1) / chunk_values; }
  int64_t value_bytes() const { return count * SizeBytes(type->dtype); }
};

// Checks what the caller has chosen, and counts the values. kInvalidArgument or kUnimplemented.
Result<FrameHeader> MakeFrameHeader(std::string_view spec, std::string_view dtype,
                                    std::vector<int64_t> shape, int64_t chunk_values,
                                    bool checksum, bool delta);

// Room to encode; more than which no such frame has.
int64_t MaxFrameBytes(const FrameHeader& header);

// Returns the bytes written. `ref` is there if header.delta.
Result<int64_t> EncodeFrame(const FrameHeader& header, const void* values, const void* ref,
                            RandomKey key, std::span<std::byte> dst, Workspace& workspace);

// Reads header and index of a frame that is not trusted; whatever they say, header.value_bytes()
// is no more than what the codec could have made `frame`'s payload of.
Result<FrameHeader> ReadFrameHeader(std::span<const std::byte> frame);

// Decodes all values. `header` is what ReadFrameHeader said of `frame`. kDataLoss when it is not
// valid; kFailedPrecondition when `ref` is not what it was encoded with.
Status DecodeFrame(const FrameHeader& header, std::span<const std::byte> frame, const void* ref,
                   void* values, Workspace& workspace);

}  // namespace jaxccomp
