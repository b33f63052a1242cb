#include "codec/sparse/kernels.h"

#include "common/instruction_sets.h"

namespace jaxccomp::sparse {
JAXCCOMP_RUNNABLE_KERNELS(avx512)
}  // namespace jaxccomp::sparse
