#include "codec/lossless/kernels.h"

#include <vector>

#include "common/instruction_sets.h"

namespace jaxccomp::lossless {

extern const Kernels kGenericKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

namespace {

std::vector<const Kernels*> DetectKernels() {
  std::vector<const Kernels*> runnable;
#if defined(__x86_64__)
  const InstructionSets& sets = RunnableInstructionSets();
  if (sets.avx512vbmi2) runnable.push_back(&kAvx512Kernels);
  if (sets.avx2) runnable.push_back(&kAvx2Kernels);
#endif
  runnable.push_back(&kGenericKernels);
  return runnable;
}

}  // namespace

std::span<const Kernels* const> RunnableKernels() {
  static const std::vector<const Kernels*> runnable = DetectKernels();
  return runnable;
}

}  // namespace jaxccomp::lossless
