#include "codec/cast/kernels.h"

#include "common/instruction_sets.h"

namespace jaxccomp::cast {
JAXCCOMP_RUNNABLE_KERNELS(avx512)
}  // namespace jaxccomp::cast
