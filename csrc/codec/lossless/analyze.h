// Chooses a plane's symbols and levels from a sample of its bytes.
#pragma once

#include <cstdint>

#include "codec/lossless/format.h"
#include "codec/lossless/kernels.h"

namespace jaxccomp::lossless {

// `sample`: `count` padded bytes of a plane of `width` bits, 1 <= count < 2^16. Chooses a raw plane
// unless coding saves at least 2 %. Must give the same result on every machine: it decides the bytes
// on the wire.
PlaneHeader AnalyzePlane(const Kernels& kernels, const uint8_t* sample, int64_t count,
                         int width);

}  // namespace jaxccomp::lossless
