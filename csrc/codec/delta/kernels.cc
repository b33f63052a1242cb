#include "codec/delta/kernels.h"

#include <vector>

#include "common/instruction_sets.h"

namespace jaxccomp::delta {

extern const Kernels kGenericKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;

std::span<const Kernels* const> RunnableKernels() {
  static const std::vector<const Kernels*> runnable = Runnable<Kernels>(
      {JAXCCOMP_X86_TABLE(avx512vbmi2, kAvx512Kernels), JAXCCOMP_X86_TABLE(avx2, kAvx2Kernels),
       &kGenericKernels});
  return runnable;
}

}  // namespace jaxccomp::delta
