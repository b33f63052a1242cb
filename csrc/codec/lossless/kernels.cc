#include "codec/lossless/kernels.h"

#include <vector>

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
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vbmi") &&
                      __builtin_cpu_supports("avx512vbmi2");
  if (avx512) runnable.push_back(&kAvx512Kernels);
  if (avx2) runnable.push_back(&kAvx2Kernels);
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
