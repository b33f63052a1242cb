// Checks and measures the codecs "nvcomp.*" on a GPU, where the library is found.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "lossless.h"

namespace jaxccomp {

// Opens the library, at JAXCCOMP_LIBNVCOMP if that is set; prints a line that says why not.
bool FindNvcomp();

// Whether values of many kinds come back, wherever they and their codes lie, also as the stage codes
// them, and whatever has been changed in a code is refused. Prints lines for each format.
bool CompareNvcomp(cudaStream_t stream);

// Prints a line for each format, dtype, size and chunk: the rates of the codec, and those of nvCOMP's
// calls alone. Then, for each dtype and size, how many times as fast lossless was as the fastest ANS of
// either kind.
void MeasureNvcomp(cudaStream_t stream, std::span<const Rates> lossless);

}  // namespace jaxccomp
