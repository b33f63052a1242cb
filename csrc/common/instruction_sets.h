// What the processor can do, of what kernels are compiled for (see the flags in CMakeLists.txt).
#pragma once

namespace jaxccomp {

struct InstructionSets {
  bool avx2 = false;          // with FMA and POPCNT; every processor that has these has F16C
  bool avx512 = false;        // F, BW, VL and DQ
  bool avx512vbmi2 = false;   // avx512, VBMI and VBMI2
};

inline const InstructionSets& RunnableInstructionSets() {
  static const InstructionSets sets = [] {
    InstructionSets found;
#if defined(__x86_64__)
    __builtin_cpu_init();
    found.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                 __builtin_cpu_supports("popcnt");
    found.avx512 = found.avx2 && __builtin_cpu_supports("avx512f") &&
                   __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                   __builtin_cpu_supports("avx512dq");
    found.avx512vbmi2 = found.avx512 && __builtin_cpu_supports("avx512vbmi") &&
                        __builtin_cpu_supports("avx512vbmi2");
#endif
    return found;
  }();
  return sets;
}

}  // namespace jaxccomp
