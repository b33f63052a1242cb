// Chooses the symbols and the levels of a plane from a sample of its bytes.
#pragma once

#include <cstdint>

#include "codec/lossless/format.h"
#include "codec/lossless/kernels.h"

namespace jaxccomp::lossless {

// `count` bytes, padded, of a plane of `width` bits, 1 <= count < 2^16. The outcome is a raw plane
// where coding would not save a fiftieth. The same on every machine: it decides what goes on the
// wire.
PlaneHeader AnalyzePlane(const Kernels& kernels, const uint8_t* sample, int64_t count,
                         int width);

}  // namespace jaxccomp::lossless
