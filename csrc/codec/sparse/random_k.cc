// The codec "randomk". Wire format: the flag (layout.h); step (64 bits), tensor, rank (32 bits each) and
// the chunk's position in the tensor (64 bits), which are the seed of the positions; the values.
#include <cmath>
#include <limits>
#include <memory>

#include "codec/sparse/kernels.h"
#include "codec/sparse/sparse_codec.h"
#include "common/half.h"

namespace jaxccomp::sparse {
namespace {

// The product, or the largest finite value if it overflows.
uint32_t ScaledFloat(float value, float factor, float maximum) {
  const float scaled = value * factor;
  return __builtin_bit_cast(uint32_t, std::fabs(scaled) > maximum ? std::copysign(maximum, value)
                                                               : scaled);
}

std::uint64_t Scaled(DType dtype, uint64_t word, int64_t factor) {
  const auto f = static_cast<float>(factor);
  switch (dtype) {
    case DType::kFloat16: {
      const float value = ToFloat(Float16{static_cast<uint16_t>(word)});
      return ToFloat16(__builtin_bit_cast(float, ScaledFloat(value, f, 65504))).bits;
    }
    case DType::kBFloat16: {
      const float value = ToFloat(BFloat16{static_cast<uint16_t>(word)});
      return ToBFloat16(__builtin_bit_cast(float, ScaledFloat(value, f, 0x1.fep127f))).bits;
    }
    case DType::kFloat32:
      return ScaledFloat(__builtin_bit_cast(float, static_cast<uint32_t>(word)), f,
                         std::numeric_limits<float>::max());
    default: {
      const double value = __builtin_bit_cast(double, word);
      const double scaled = value * static_cast<double>(factor);
      const double maximum = std::numeric_limits<double>::max();
      return __builtin_bit_cast(uint64_t,
                                std::fabs(scaled) > maximum ? std::copysign(maximum, value) : scaled);
    }
  }
}

// Each unbiased encoding scales the kept values, so that encoding decoded values again needs new positions.
bool Unbiased(const CodecOptions& options) { return options.Text("unbiased") == "true"; }

class RandomK final : public SparseCodec {
 public:
  explicit RandomK(const CodecOptions& options)
      : SparseCodec(options, /*fixed_rate=*/true, /*draws_alike=*/!Unbiased(options)),
        unbiased_(Unbiased(options)) {}

  // Unbiased values are multiplied by at most 1 + 1 / density, the length of a part, and rounded once.
  ErrorBound Bound(DType) const override {
    return {.relative = unbiased_ ? 1 + (1 + 0x1p-7) / density() : 1, .keeps_nonfinite = false};
  }

  int64_t MaxEncodedBytes(DType dtype, int64_t count) const override {
    if (CheckedBytes(count, 2 * SizeBytes(DType::kComplex128)) < 0) return -1;
    return count == 0 ? 0 : kFlagBytes + kKeyBytes + Kept(count) * SizeBytes(dtype);
  }

 protected:
  Result<int64_t> DoEncode(DType dtype, const void* src, int64_t count, std::byte* dst,
                           const CodingContext& context) const override {
    return WithFloatBits(dtype, [&]<typename Word>(FloatBits<Word> bits) {
      const auto* from = static_cast<const std::byte*>(src);
      const int64_t kept = Kept(count), bytes = MaxEncodedBytes(dtype, count);
      if (AnyAbove(BestKernels(), from, count, bits.infinity)) return EncodeNonFinite(dst, bytes);
      dst[0] = kFinite;
      Store(context.key.step, dst + 1);
      Store(context.key.tensor, dst + 9);
      Store(context.key.rank, dst + 13);
      Store(context.first, dst + 17);
      std::byte* to = dst + kFlagBytes + kKeyBytes;
      DrawnPositions positions(context.key, context.first, count, kept);
      for (int64_t j = 0; j < kept; ++j) {
        auto word = Load<Word>(from + positions.Next() * sizeof(Word));
        if (unbiased_) word = static_cast<Word>(Scaled(dtype, word, positions.length()));
        Store(word, to + j * sizeof(Word));
      }
      return bytes;
    });
  }

  Result<Payload> Open(DType, std::span<const std::byte> body, int64_t count) const override {
    const std::byte* at = body.data();
    const RandomKey key = {Load<uint64_t>(at), Load<uint32_t>(at + 8), Load<uint32_t>(at + 12)};
    const int64_t kept = Kept(count);
    return Payload{kept, at + kKeyBytes,
                   DrawnPositions(key, Load<int64_t>(at + 16), count, kept)};
  }

 private:
  const bool unbiased_;
};

constexpr std::string_view kUnbiasedChoices[] = {"false", "true"};

constexpr CodecOption kOptions[] = {
    kDensityOption,
    {.name = "unbiased",
     .default_value = "false",
     .description = "true: multiplies each kept value by the number of values that it stands for, so "
                    "that the decoded values equal the input on average",
     .choices = kUnbiasedChoices}};

}  // namespace

const CodecInfo kRandomKRow = {
    .name = "randomk",
    .description = "values at random places, one out of each of equal parts, the same on all ranks "
                   "unless unbiased; the others become 0",
    .ratio = "1 / density",
    .error = "up to the value itself, 1 / density times that if unbiased; a chunk that has NaN or "
             "infinity becomes NaN",
    .dtypes = kRealFloats,
    .options = kOptions,
    .make = [](const CodecOptions& options) {
      return std::unique_ptr<const Codec>(new RandomK(options));
    }};

}  // namespace jaxccomp::sparse
