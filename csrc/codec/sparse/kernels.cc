#include "codec/sparse/kernels.h"

#include <vector>

#include "common/instruction_sets.h"

namespace jaxccomp::sparse {

extern const Kernels kKernelsGeneric;
extern const Kernels kKernelsAvx2;
extern const Kernels kKernelsAvx512;

std::span<const Kernels* const> RunnableKernels() {
  static const std::vector<const Kernels*> runnable = Runnable<Kernels>(
      {JAXCCOMP_X86_TABLE(avx512, kKernelsAvx512), JAXCCOMP_X86_TABLE(avx2, kKernelsAvx2),
       &kKernelsGeneric});
  return runnable;
}

}  // namespace jaxccomp::sparse
