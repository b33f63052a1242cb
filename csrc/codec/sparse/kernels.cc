#include "codec/sparse/kernels.h"

#include <vector>

#include "common/instruction_sets.h"

namespace jaxccomp::sparse {

extern const Kernels kKernelsGeneric;
#if defined(__x86_64__)
extern const Kernels kKernelsAvx2;
extern const Kernels kKernelsAvx512;
#endif

std::span<const Kernels* const> RunnableKernels() {
  static const std::vector<const Kernels*> tables = [] {
    std::vector<const Kernels*> runnable;
#if defined(__x86_64__)
    if (RunnableInstructionSets().avx512) runnable.push_back(&kKernelsAvx512);
    if (RunnableInstructionSets().avx2) runnable.push_back(&kKernelsAvx2);
#endif
    runnable.push_back(&kKernelsGeneric);
    return runnable;
  }();
  return tables;
}

}  // namespace jaxccomp::sparse
