#include "codec/delta/kernels.h"

#include "common/instruction_sets.h"

namespace jaxccomp::delta {
JAXCCOMP_RUNNABLE_KERNELS(avx512vbmi2)
}  // namespace jaxccomp::delta
