// The base class of "zstd" and "lz4": a general compressor of byte planes. Values that do not shrink are
// stored unencoded.
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

  // A lower bound of the compressed size of `bytes` bytes.
  virtual int64_t MinCompressedBytes(int64_t bytes) const = 0;
  // Compresses `bytes` bytes into at most `room`; returns 0 if they do not fit.
  virtual int64_t Compress(const std::byte* src, int64_t bytes, std::byte* dst, int64_t room,
                           Workspace& workspace) const = 0;
  // Decompresses to `dst`. False unless `src` decodes to exactly `bytes` bytes.
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
