// Checks and measures the codecs "nvcomp.*" on a GPU, if nvCOMP is found.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "lossless.h"

namespace jaxccomp {

// Opens nvCOMP, at JAXCCOMP_LIBNVCOMP if that is set; if it fails, prints the reason.
bool FindNvcomp();

// Whether values of many kinds survive a round trip, at any alignment of values and encoded bytes, also through
// the stage, and every modified encoding is rejected. Prints lines for each format.
bool CompareNvcomp(cudaStream_t stream);

// Prints a line for each format, dtype, size and chunk: rates of the codec, and of nvCOMP's calls alone. Then,
// for each dtype and size, the rate of `lossless` / the highest rate of ANS (codec or nvCOMP alone, any chunk).
void MeasureNvcomp(cudaStream_t stream, std::span<const Rates> lossless);

}  // namespace jaxccomp
