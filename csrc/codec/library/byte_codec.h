// What "zstd" and "lz4" share: byte planes, a general compressor, and values stored as they are
// where it gains nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "codec/registry.h"

namespace jaxccomp::library {

inline constexpr std::string_view kShuffleChoices[] = {"byte", "none"};
inline constexpr CodecOption kShuffleOption = {
    .name = "shuffle",
    .default_value = "byte",
    .description = "byte: the first bytes of all words come first, then the second ones, and so on",
    .choices = kShuffleChoices};

class ByteCodec : public Codec {
 public:
  int64_t MaxEncodedBytes(DType dtype, int64_t count) const final;
  int64_t MinEncodedBytes(DType dtype, int64_t count) const final;

 protected:
  ByteCodec(const CodecOptions& options, bool slow);

  // Fewer than this no compressed `bytes` bytes have.
  virtual int64_t MinCompressedBytes(int64_t bytes) const = 0;
  // Compresses `bytes` bytes into at most `room`; 0 where they do not fit.
  virtual int64_t Compress(const std::byte* src, int64_t bytes, std::byte* dst, int64_t room,
                           Workspace& workspace) const = 0;
  // Whether `src` was exactly `bytes` bytes, which are then in `dst`.
  virtual bool Decompress(std::span<const std::byte> src, std::byte* dst, int64_t bytes,
                          Workspace& workspace) const = 0;

 private:
  Result<int64_t> DoEncode(DType dtype, const void* src, int64_t count, std::byte* dst,
                           const CodingContext& context) const final;
  Status DoDecode(DType dtype, std::span<const std::byte> src, void* dst, int64_t count,
                  const CodingContext& context) const final;

  const bool shuffle_;
};

}  // namespace jaxccomp::library
