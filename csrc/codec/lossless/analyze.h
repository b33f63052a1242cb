// Chooses the symbols and the levels of a plane from a sample of its bytes.
#pragma once

#include <cstdint>

#include "codec/lossless/format.h"

namespace jaxccomp::lossless {

// `count` bytes of a plane of `width` bits, count >= 1. The outcome is a raw plane where coding
// would not save a fiftieth. The same on every machine: it decides what goes on the wire.
PlaneHeader AnalyzePlane(const uint8_t* sample, int64_t count, int width);

}  // namespace jaxccomp::lossless
