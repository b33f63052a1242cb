// The codecs "int8", "int4", "int2", "fp8_e4m3" and "fp8_e5m2": blocks of small integers or floats
// times a scale. The bytes: docs/wire_format_lossy.md.
#include <algorithm>

#include "codec/float_codec.h"
#include "codec/quantize/kernels.h"
#include "codec/random_bits.h"
#include "codec/rows.h"

namespace jaxccomp {
namespace {

using quantize::BestKernels;
using quantize::Format;
using quantize::Kernels;

constexpr double kMinScale = 0x1p-100;

// For floats: half a step of the scale, which is rounded up. (Stochastic: a whole step.)
constexpr ErrorBound kNearestBounds[quantize::kFormats] = {
    {.block = 0.5 * (1 + 0x1p-7) / 127, .absolute = kMinScale / 2},
    {.block = 0.5 * (1 + 0x1p-7) / 7, .absolute = kMinScale / 2},
    {.block = 0.5 * (1 + 0x1p-7), .absolute = kMinScale / 2},
    // Half a unit in the last place of normal and of subnormal codes. The scale is less than the
    // greatest value divided by half of the greatest code.
    {.relative = 0x1p-4, .block = 0x1p-10 / 224, .absolute = kMinScale * 0x1p-10},
    {.relative = 0x1p-3, .block = 0x1p-17 / 28672, .absolute = kMinScale * 0x1p-17}};

class Quantize final : public FloatCodec {
 public:
  Quantize(Format format, const CodecOptions& options)
      : FloatCodec({.spec = options.spec(),
                    .fixed_rate = true,
                    .one_pass_merge = true,
                    .dtypes = kRealFloats}),
        format_(format),
        block_(options.Integer("block")),
        block_index_(static_cast<int>(std::find(std::begin(quantize::kBlocks),
                                                std::end(quantize::kBlocks), block_) -
                                      std::begin(quantize::kBlocks))),
        stochastic_(format < quantize::kIntFormats && options.Text("rounding") == "stochastic") {}

  ErrorBound Bound(DType dtype) const override {
    ErrorBound bound = kNearestBounds[format_];
    if (stochastic_) {
      bound.block *= 2;
      bound.absolute *= 2;
    }
    bound.block_values = block_;
    return BoundFor(dtype, bound);
  }

  int64_t MaxEncodedBytes(DType dtype, int64_t count) const override {
    return CheckedBytes(count, SizeBytes(dtype)) < 0 ? -1 : ScaleBytes(count) + CodeBytes(count);
  }

 protected:
  void EncodeFloats(const void* values, Piece piece, std::byte* dst,
                    const CodingContext& context) const override {
    std::byte* scales = dst + ScaleBytes(piece.begin);
    std::byte* codes = dst + ScaleBytes(piece.chunk_count) + CodeBytes(piece.begin);
    const Kernels& kernels = BestKernels();
    if (!stochastic_) {
      return kernels.encode[format_][block_index_](values, piece.count, nullptr, scales, codes);
    }
    alignas(64) uint16_t room[kTileValues + kRandomRoom];
    for (int64_t i = 0; i < piece.count; i += kTileValues) {
      const int64_t n = std::min(kTileValues, piece.count - i);
      const uint16_t* random =
          RandomBits(context.key, context.first + piece.begin + i, n, room);
      kernels.encode_stochastic[format_][block_index_](
          static_cast<const std::byte*>(values) + i * sizeof(float), n, random,
          scales + ScaleBytes(i), codes + CodeBytes(i));
    }
  }

  void DecodeFloats(const std::byte* src, Piece piece, float limit, Into into,
                    void* values) const override {
    const Kernels& kernels = BestKernels();
    const auto& decode = into == Into::kAdded ? kernels.decode_add : kernels.decode;
    decode[format_][block_index_](src + ScaleBytes(piece.begin),
                                  src + ScaleBytes(piece.chunk_count) + CodeBytes(piece.begin),
                                  piece.count, limit, values);
  }

 private:
  int64_t ScaleBytes(int64_t count) const {
    return (count / block_ + (count % block_ != 0)) * quantize::kScaleBytes[format_];
  }
  int64_t CodeBytes(int64_t count) const {
    const int64_t values_per_byte = 8 / quantize::kBits[format_];
    return count / values_per_byte + (count % values_per_byte != 0);
  }

  const Format format_;
  const int64_t block_;
  const int block_index_;
  const bool stochastic_;
};

template <Format format>
std::unique_ptr<const Codec> Make(const CodecOptions& options) {
  return std::make_unique<Quantize>(format, options);
}

constexpr std::string_view kBlockChoices[] = {"32", "64", "128", "256"};
constexpr std::string_view kRoundings[] = {"nearest", "stochastic"};
constexpr CodecOption kIntOptions[] = {
    {.name = "block",
     .default_value = "32",
     .description = "values that share a scale",
     .choices = kBlockChoices},
    {.name = "rounding",
     .default_value = "nearest",
     .description = "to the nearest, or up or down at random such that the mean is exact",
     .choices = kRoundings}};
constexpr std::span<const CodecOption> kFp8Options(kIntOptions, 1);

}  // namespace

std::span<const CodecInfo> QuantizeRows() {
  static const CodecInfo rows[] = {
      {.name = "int8",
       .description = "blocks of 8-bit integers times a bfloat16 scale",
       .ratio = "3.8 for float32, 1.9 for half types; 4 and 2 with large blocks",
       .error = "1/252 of the block's greatest value; twice that when stochastic",
       .dtypes = kRealFloats,
       .options = kIntOptions,
       .make = &Make<quantize::kInt8>},
      {.name = "int4",
       .description = "blocks of 4-bit integers times a bfloat16 scale",
       .ratio = "7.1 for float32, 3.6 for half types; 8 and 4 with large blocks",
       .error = "1/13 of the block's greatest value; twice that when stochastic",
       .dtypes = kRealFloats,
       .options = kIntOptions,
       .make = &Make<quantize::kInt4>},
      {.name = "int2",
       .description = "blocks of -1, 0 and 1 times a bfloat16 scale",
       .ratio = "12.8 for float32, 6.4 for half types; 16 and 8 with large blocks",
       .error = "half of the block's greatest value; twice that when stochastic",
       .dtypes = kRealFloats,
       .options = kIntOptions,
       .make = &Make<quantize::kInt2>},
      {.name = "fp8_e4m3",
       .description = "blocks of 8-bit floats (4 bits of exponent) times a power of two",
       .ratio = "3.9 for float32, 1.9 for half types",
       .error = "1/16 of the value, at least 2^-17 of the block's greatest value",
       .dtypes = kRealFloats,
       .options = kFp8Options,
       .make = &Make<quantize::kE4m3>},
      {.name = "fp8_e5m2",
       .description = "blocks of 8-bit floats (5 bits of exponent) times a power of two",
       .ratio = "3.9 for float32, 1.9 for half types",
       .error = "1/8 of the value, at least 2^-31 of the block's greatest value",
       .dtypes = kRealFloats,
       .options = kFp8Options,
       .make = &Make<quantize::kE5m2>}};
  return rows;
}

}  // namespace jaxccomp
