// Which codecs have kernels, and how they code: by a format of a fixed rate, by "lossless" or nvCOMP,
// or by the first and then one of the others.
#pragma once

#include <cstdint>
#include <optional>

#include "codec/codec.h"
#include "codec/nvcomp/formats.h"
#include "common/dtype.h"
#include "cuda/fixed_rate.h"

namespace jaxccomp::cuda {

// With neither stage, values travel as they are.
struct Coding {
  std::optional<FixedRate> fixed;
  bool lossless = false;
  std::optional<nvcomp::Spec> nvcomp;
  // What the second stage takes the bytes of the first for.
  DType between = DType::kUInt8;

  bool raw() const { return !fixed && !varies(); }
  // Whether a code has no size until it is made, and may be none when it comes.
  bool varies() const { return lossless || nvcomp; }
  // Whether it is coded exactly: differences are then XOR.
  bool exact() const { return !fixed; }
  // Whether its kernels form the difference to a reference.
  bool takes_reference() const { return lossless && !fixed; }
  // Whether who starts decoding waits until the stream has come to it.
  bool decoding_waits() const { return nvcomp && nvcomp::RowOf(nvcomp->format).decoding_waits; }
  // What the last stage codes, of values of `dtype`.
  DType LastDType(DType dtype) const { return fixed ? between : dtype; }

  // Of the first stage, which has them.
  int64_t FixedBytes(int64_t count) const;
  // kUnimplemented for dtypes that the codec has, and its kernels do not.
  Status CheckDType(DType dtype) const;
};

// None for codecs that have no kernels.
std::optional<Coding> FindCoding(const Codec& codec);

}  // namespace jaxccomp::cuda
