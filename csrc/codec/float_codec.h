// The base class of codecs that encode float32. Other real types are converted in tiles of floats,
// which stay in the first-level cache. float64 is rounded to float: values beyond its range become
// infinite.
#pragma once

#include <utility>

#include "codec/codec.h"

namespace jaxccomp {

class FloatCodec : public Codec {
 public:
  // Tiles begin at multiples of this, which is a multiple of every codec's block.
  static constexpr int64_t kTileValues = 4096;

 protected:
  explicit FloatCodec(Traits traits) : Codec(std::move(traits)) {}

  // Values [begin, begin + count) of a chunk of `chunk_count`: all of them, or one tile. The floats
  // need no alignment.
  struct Piece {
    int64_t begin;
    int64_t count;
    int64_t chunk_count;
  };
  // Writes the piece's part of the encoding at `dst`.
  virtual void EncodeFloats(const void* values, Piece piece, std::byte* dst,
                            const CodingContext& context) const = 0;
  // Whether decoded floats overwrite `values` or are added to them.
  enum class Into { kStored, kAdded };
  // Decodes a piece of the encoding `src`. No finite value may become greater than `limit`.
  virtual void DecodeFloats(const std::byte* src, Piece piece, float limit, Into into,
                            void* values) const = 0;

  // The bound for values of `dtype`, from the bound for floats. Ignores rounding of float arithmetic
  // and flushed subnormals.
  static ErrorBound BoundFor(DType dtype, ErrorBound floats);

  Result<int64_t> DoEncode(DType dtype, const void* src, int64_t count, std::byte* dst,
                           const CodingContext& context) const final;
  Status DoDecode(DType dtype, std::span<const std::byte> src, void* dst, int64_t count,
                  const CodingContext& context) const final;
  Status DoDecodeMerge(DType dtype, std::span<const std::byte> src, ReduceOp op, DType acc_dtype,
                       void* acc, int64_t count, const CodingContext& context) const final;
};

}  // namespace jaxccomp
