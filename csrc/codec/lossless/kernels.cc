#include "codec/lossless/kernels.h"

#include "common/instruction_sets.h"

namespace jaxccomp::lossless {
JAXCCOMP_RUNNABLE_KERNELS(avx512vbmi2)
}  // namespace jaxccomp::lossless
