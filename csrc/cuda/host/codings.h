// Which codecs have kernels: those of a fixed rate, for the streams of programs, and those of a size that
// varies, for the stage.
#pragma once

#include <optional>

#include "codec/codec.h"
#include "codec/nvcomp/formats.h"
#include "cuda/kernels/fixed_rate/fixed_rate.h"

namespace jaxccomp::cuda {

// Of a codec of one stage; none for others.
std::optional<FixedRate> FindFixedRate(const Codec& codec);

// "lossless", or one of nvCOMP's.
struct Packing {
  std::optional<nvcomp::Spec> nvcomp;   // none: "lossless"
};
std::optional<Packing> FindPacking(const Codec& codec);

}  // namespace jaxccomp::cuda
