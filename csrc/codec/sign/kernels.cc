#include "codec/sign/kernels.h"

#include <vector>

#include "common/instruction_sets.h"

namespace jaxccomp::sign {

extern const Kernels kGenericKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

std::span<const Kernels* const> RunnableKernels() {
  static const std::vector<const Kernels*> runnable = [] {
    std::vector<const Kernels*> found;
#if defined(__x86_64__)
    const InstructionSets& sets = RunnableInstructionSets();
    if (sets.avx512) found.push_back(&kAvx512Kernels);
    if (sets.avx2) found.push_back(&kAvx2Kernels);
#endif
    found.push_back(&kGenericKernels);
    return found;
  }();
  return runnable;
}

}  // namespace jaxccomp::sign
