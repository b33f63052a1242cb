// What the sparse codecs share: a byte that says whether all values are finite, and putting the
// values that travel among zeros.
#pragma once

#include <variant>

#include "codec/registry.h"
#include "codec/sparse/layout.h"
#include "codec/sparse/positions.h"

namespace jaxccomp::sparse {

inline constexpr CodecOption kDensityOption = {.name = "density",
                                               .default_value = "0.01",
                                               .description = "the part of the values that travels",
                                               .least = 1e-6,
                                               .most = 1};

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
  // How many of `count` values travel.
  int64_t Kept(int64_t count) const { return KeptValues(density_, count); }

  // A chunk that has values that are not finite: `bytes` bytes, none of which has a value.
  static int64_t EncodeNonFinite(std::byte* dst, int64_t bytes);

  // What follows the first byte of a finite chunk.
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
