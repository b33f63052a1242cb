// The base class of sparse codecs: a flag byte for non-finite values, and scattering the sent values
// among zeros.
#pragma once

#include <variant>

#include "codec/registry.h"
#include "codec/sparse/layout.h"
#include "codec/sparse/positions.h"

namespace jaxccomp::sparse {

inline constexpr CodecOption kDensityOption = {.name = "density",
                                               .default_value = "0.01",
                                               .description = "the part of the values that travels",
                                               .min = 1e-6,
                                               .max = 1};

class SparseCodec : public Codec {
 public:
  ErrorBound Bound(DType) const override { return {.relative = 1, .keeps_nonfinite = false}; }

 protected:
  SparseCodec(const CodecOptions& options, bool fixed_rate, bool draws_alike = false)
      : Codec({.spec = options.spec(),
               .fixed_rate = fixed_rate,
               .one_pass_merge = true,
               .draws_alike = draws_alike,
               .dtypes = kRealFloats}),
        density_(options.Number("density")) {}

  double density() const { return density_; }
  // The number of values sent, of `count`.
  int64_t Kept(int64_t count) const { return KeptValues(density_, count); }

  // Encodes a chunk with non-finite values: the flag, then zeros, `bytes` bytes in all.
  static int64_t EncodeNonFinite(std::byte* dst, int64_t bytes);

  // The bytes after the flag of a finite chunk.
  struct Payload {
    int64_t kept = 0;
    const std::byte* values = nullptr;
    std::variant<TablePositions, DrawnPositions> positions;
  };
  virtual Result<Payload> Open(DType dtype, std::span<const std::byte> body,
                               int64_t count) const = 0;

 private:
  Status DoDecode(DType dtype, std::span<const std::byte> src, void* dst, int64_t count,
                  const CodingContext& context) const final;
  Status DoDecodeMerge(DType dtype, std::span<const std::byte> src, ReduceOp op, DType acc_dtype,
                       void* acc, int64_t count, const CodingContext& context) const final;
  Result<bool> DoKeepLost(DType dtype, std::span<const std::byte> src, void* values, int64_t count,
                          const CodingContext& context) const final;
  // Whether the values are finite.
  Result<bool> CheckFinite(DType dtype, std::span<const std::byte> src, int64_t count) const;

  const double density_;
};

extern const CodecInfo kTopKRow, kDgcRow, kRandomKRow;

}  // namespace jaxccomp::sparse
