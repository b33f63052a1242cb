// Which codecs have kernels, and how they code: by a format of a fixed rate or a sparse one, by
// "lossless" or nvCOMP, or by one of the first and then one of the others.
#pragma once

#include <cstdint>
#include <optional>

#include "codec/codec.h"
#include "codec/nvcomp/formats.h"
#include "common/dtype.h"
#include "cuda/kernels/fixed_rate/fixed_rate.h"
#include "cuda/kernels/sparse/sparse.h"

namespace jaxccomp::cuda {

// With neither stage, values travel as they are.
struct Coding {
  // The first stage, which loses something: at most one of these.
  std::optional<FixedRate> fixed;
  std::optional<Sparse> sparse;
  // The last one: at most one of these.
  bool lossless = false;
  std::optional<nvcomp::Spec> nvcomp;
  // What the second stage takes the bytes of the first for.
  DType between = DType::kUInt8;

  bool lossy() const { return fixed || sparse; }
  bool packs() const { return lossless || nvcomp; }
  bool raw() const { return !lossy() && !packs(); }
  // Whether it is coded exactly: differences are then XOR.
  bool exact() const { return !lossy(); }
  // Whether its kernels form the difference to a reference.
  bool takes_reference() const { return lossless && !lossy(); }
  // What the last stage codes, of values of `dtype`.
  DType LastDType(DType dtype) const { return lossy() ? between : dtype; }

  // The bytes that the first stage makes, if there is one; of "dgc" at most.
  int64_t LossyBytes(DType dtype, int64_t count) const;
  // kUnimplemented for dtypes that the codec has, and its kernels do not.
  Status CheckDType(DType dtype) const;
};

// None for codecs that have no kernels.
std::optional<Coding> FindCoding(const Codec& codec);

}  // namespace jaxccomp::cuda
