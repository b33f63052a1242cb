// The codecs "onebit", "ternary" and "tbq": one or two bits per value. The bytes:
// docs/wire_format_lossy.md.
#include <algorithm>
#include <cstring>

#include "codec/float_codec.h"
#include "codec/random_bits.h"
#include "codec/rows.h"
#include "codec/sign/kernels.h"

namespace jaxccomp {
namespace {

using sign::BestKernels;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0); }

// The base class: a header per block, then the codes of all blocks with `bits` bits per value.
class SignCodec : public FloatCodec {
 public:
  int64_t MaxEncodedBytes(DType dtype, int64_t count) const final {
    return CheckedBytes(count, SizeBytes(dtype)) < 0 ? -1 : HeaderBytes(count) + CodeBytes(count);
  }

 protected:
  SignCodec(std::string spec, int64_t block, int64_t header_bytes, int64_t bits)
      : FloatCodec({.spec = std::move(spec),
                    .fixed_rate = true,
                    .one_pass_merge = true,
                    .dtypes = kRealFloats}),
        block_(block),
        header_bytes_(header_bytes),
        values_per_byte_(8 / bits) {}

  // One block; `first`: its first value's position in the tensor.
  virtual void EncodeBlock(const std::byte* values, int64_t count, std::byte* header,
                           std::byte* codes, const RandomKey& key, int64_t first) const = 0;
  virtual void DecodeBlock(const std::byte* header, const std::byte* codes, int64_t count,
                           Into into, std::byte* values) const = 0;

  int64_t block() const { return block_; }

 private:
  int64_t HeaderBytes(int64_t count) const { return CeilDiv(count, block_) * header_bytes_; }
  int64_t CodeBytes(int64_t count) const { return CeilDiv(count, values_per_byte_); }

  void EncodeFloats(const void* values, Piece piece, std::byte* dst,
                    const CodingContext& context) const final {
    std::byte* codes = dst + HeaderBytes(piece.chunk_count);
    auto* from = static_cast<const std::byte*>(values);
    for (int64_t i = 0; i < piece.count; i += block_) {
      const int64_t at = piece.begin + i;
      EncodeBlock(from + i * sizeof(float), std::min(block_, piece.count - i),
                  dst + HeaderBytes(at), codes + CodeBytes(at), context.key, context.first + at);
    }
  }

  void DecodeFloats(const std::byte* src, Piece piece, float, Into into,
                    void* values) const final {
    const std::byte* codes = src + HeaderBytes(piece.chunk_count);
    auto* to = static_cast<std::byte*>(values);
    for (int64_t i = 0; i < piece.count; i += block_) {
      const int64_t at = piece.begin + i;
      DecodeBlock(src + HeaderBytes(at), codes + CodeBytes(at), std::min(block_, piece.count - i),
                  into, to + i * sizeof(float));
    }
  }

  const int64_t block_;
  const int64_t header_bytes_;
  const int64_t values_per_byte_;
};

// A mean's magnitude is at most the greatest value's; below this it becomes 0.
constexpr double kMinScale = 0x1p-100;

class OneBit final : public SignCodec {
 public:
  explicit OneBit(const CodecOptions& options)
      : SignCodec(options.spec(), options.Integer("block"), 2 * sizeof(float), 1) {}

  ErrorBound Bound(DType dtype) const override {
    return BoundFor(dtype, {.block = 1, .absolute = kMinScale, .block_values = block()});
  }

 private:
  void EncodeBlock(const std::byte* values, int64_t count, std::byte* header, std::byte* codes,
                   const RandomKey&, int64_t) const override {
    BestKernels().encode_onebit(values, count, header, codes);
  }
  void DecodeBlock(const std::byte* header, const std::byte* codes, int64_t count, Into into,
                   std::byte* values) const override {
    BestKernels().decode_onebit[into == Into::kAdded](header, codes, count, values);
  }
};

class Ternary final : public SignCodec {
 public:
  explicit Ternary(const CodecOptions& options)
      : SignCodec(options.spec(), options.Integer("block"), sizeof(float), 2),
        stochastic_(options.Text("rounding") == "stochastic") {}

  ErrorBound Bound(DType dtype) const override {
    return BoundFor(dtype, {.block = stochastic_ ? 1 : 0.5,
                            .absolute = kMinScale,
                            .block_values = block()});
  }

 private:
  void EncodeBlock(const std::byte* values, int64_t count, std::byte* header, std::byte* codes,
                   const RandomKey& key, int64_t first) const override {
    alignas(64) uint16_t room[kTileValues + kRandomRoom];
    const uint16_t* random = stochastic_ ? RandomBits(key, first, count, room) : nullptr;
    BestKernels().encode_ternary(values, count, random, header, codes);
  }
  void DecodeBlock(const std::byte* header, const std::byte* codes, int64_t count, Into into,
                   std::byte* values) const override {
    float scale;
    std::memcpy(&scale, header, sizeof(scale));
    // A NaN scale decodes all values to NaN; code 2 is never written.
    const float meanings[] = {scale == scale ? 0 : scale, scale, kNaN, -scale};
    BestKernels().decode_pairs[into == Into::kAdded](meanings, codes, count, values);
  }

  const bool stochastic_;
};

class Threshold final : public SignCodec {
 public:
  explicit Threshold(const CodecOptions& options)
      : SignCodec(options.spec(), 1024, 0, 2),
        threshold_(static_cast<float>(options.Number("threshold"))) {}

  ErrorBound Bound(DType dtype) const override {
    // Values move towards 0. NaN affects only its own value.
    return BoundFor(dtype, {.relative = 1, .block_values = 1});
  }

 private:
  void EncodeBlock(const std::byte* values, int64_t count, std::byte*, std::byte* codes,
                   const RandomKey&, int64_t) const override {
    BestKernels().encode_threshold(values, count, threshold_, codes);
  }
  void DecodeBlock(const std::byte*, const std::byte* codes, int64_t count, Into into,
                   std::byte* values) const override {
    const float meanings[] = {0, threshold_, kNaN, -threshold_};
    BestKernels().decode_pairs[into == Into::kAdded](meanings, codes, count, values);
  }

  const float threshold_;
};

template <typename T>
std::unique_ptr<const Codec> Make(const CodecOptions& options) {
  return std::make_unique<T>(options);
}

constexpr std::string_view kBlockChoices[] = {"256", "1024", "4096"};
constexpr std::string_view kRoundings[] = {"nearest", "stochastic"};
constexpr CodecOption kOneBitOptions[] = {{.name = "block",
                                           .default_value = "1024",
                                           .description = "values that share two means",
                                           .choices = kBlockChoices}};
constexpr CodecOption kTernaryOptions[] = {
    {.name = "block",
     .default_value = "1024",
     .description = "values that share a scale",
     .choices = kBlockChoices},
    {.name = "rounding",
     .default_value = "stochastic",
     .description = "up or down at random such that the mean is exact, or to the nearest",
     .choices = kRoundings}};
constexpr CodecOption kThresholdOptions[] = {
    {.name = "threshold",
     .default_value = "0.001",
     .description = "what larger values become, with their sign; smaller ones become 0",
     .choices = {},
     .min = 1e-30,
     .max = 1e30}};

}  // namespace

std::span<const CodecInfo> SignRows() {
  static const CodecInfo rows[] = {
      {.name = "onebit",
       .description = "a block's signs, and the means of its values with each sign",
       .ratio = "30 for float32, 15 for half types; 32 and 16 with large blocks",
       .error = "the block's greatest value at most; use error feedback",
       .dtypes = kRealFloats,
       .options = kOneBitOptions,
       .make = &Make<OneBit>},
      {.name = "ternary",
       .description = "blocks of -1, 0 and 1 times the greatest value, right in the mean",
       .ratio = "16 for float32, 8 for half types",
       .error = "the block's greatest value at most; half of it when nearest",
       .dtypes = kRealFloats,
       .options = kTernaryOptions,
       .make = &Make<Ternary>},
      {.name = "tbq",
       .description = "values of at least a threshold become that threshold, others 0",
       .ratio = "16 for float32, 8 for half types",
       .error = "the value itself at most; use error feedback",
       .dtypes = kRealFloats,
       .options = kThresholdOptions,
       .make = &Make<Threshold>}};
  return rows;
}

}  // namespace jaxccomp
