#include "codec/quantize/kernels.h"

#include "common/instruction_sets.h"

namespace jaxccomp::quantize {
JAXCCOMP_RUNNABLE_KERNELS(avx512)
}  // namespace jaxccomp::quantize
