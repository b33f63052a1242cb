// Which codecs have kernels, and how they code: a format of a fixed rate, "lossless", or the first
// and then the second.
#pragma once

#include <cstdint>
#include <optional>

#include "codec/codec.h"
#include "common/dtype.h"
#include "cuda/fixed_rate.h"

namespace jaxccomp::cuda {

// With neither stage, values travel as they are.
struct Coding {
  std::optional<FixedRate> fixed;
  bool lossless = false;
  // What lossless takes the bytes of the first stage for.
  DType between = DType::kUInt8;

  bool raw() const { return !fixed && !lossless; }
  // Whether it is coded exactly: differences are then XOR.
  bool exact() const { return !fixed; }
  // Whether its kernels form the difference to a reference.
  bool takes_reference() const { return lossless && !fixed; }

  // Of the first stage, which has them.
  int64_t FixedBytes(int64_t count) const;
  // kUnimplemented for dtypes that the codec has, and its kernels do not.
  Status CheckDType(DType dtype) const;
};

// None for codecs that have no kernels.
std::optional<Coding> FindCoding(const Codec& codec);

}  // namespace jaxccomp::cuda
