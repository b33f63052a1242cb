#include "codec/sign/kernels.h"

#include "common/instruction_sets.h"

namespace jaxccomp::sign {
JAXCCOMP_RUNNABLE_KERNELS(avx512)
}  // namespace jaxccomp::sign
