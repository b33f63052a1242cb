// What codecs share that code float32: values of the other real types pass through a tile of floats
// that stays in the first-level cache. float64 is rounded to float, and what is beyond float's
// range becomes infinite.
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

  // `count` floats at any address, from the chunk's value `begin` on; `chunk_count` values are
  // coded in all. Either all of them, or one tile.
  struct Piece {
    int64_t begin;
    int64_t count;
    int64_t chunk_count;
  };
  // Writes the piece's part of the encoding at `dst`.
  virtual void EncodeFloats(const void* values, Piece piece, std::byte* dst,
                            const CodingContext& context) const = 0;
  // What becomes of a decoded float.
  enum class Into { kStored, kAdded };
  // Decodes a piece of the encoding `src`. No finite value may become greater than `limit`.
  virtual void DecodeFloats(const std::byte* src, Piece piece, float limit, Into into,
                            void* values) const = 0;

  // The bound for values of `dtype`, given the one for floats, but for roundings of float
  // arithmetic and flushed subnormals.
  static ErrorBound BoundFor(DType dtype, ErrorBound floats);

  Result<int64_t> DoEncode(DType dtype, const void* src, int64_t count, std::byte* dst,
                           const CodingContext& context) const final;
  Status DoDecode(DType dtype, std::span<const std::byte> src, void* dst, int64_t count,
                  const CodingContext& context) const final;
  Status DoDecodeMerge(DType dtype, std::span<const std::byte> src, ReduceOp op, DType acc_dtype,
                       void* acc, int64_t count, const CodingContext& context) const final;
};

}  // namespace jaxccomp
