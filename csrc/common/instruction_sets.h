// The processor's instruction sets that kernels are compiled for (see the flags in CMakeLists.txt).
#pragma once

#include <cstdlib>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

namespace jaxccomp {

struct InstructionSets {
  bool avx2 = false;          // with FMA and POPCNT; every processor that has these has F16C
  bool avx512 = false;        // F, BW, VL and DQ
  bool avx512vbmi2 = false;   // avx512, VBMI and VBMI2

  std::string_view best() const {
    return avx512vbmi2 ? "avx512vbmi2" : avx512 ? "avx512" : avx2 ? "avx2" : "generic";
  }
};

// The environment variable JAXCCOMP_INSTRUCTION_SET names the best one to use, for comparisons.
inline const InstructionSets& RunnableInstructionSets() {
  static const InstructionSets sets = [] {
    InstructionSets found;
#if defined(__x86_64__)
    const char* text = std::getenv("JAXCCOMP_INSTRUCTION_SET");
    const std::string_view maximum = text != nullptr ? text : "";
    __builtin_cpu_init();
    found.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                 __builtin_cpu_supports("popcnt") && maximum != "generic";
    found.avx512 = found.avx2 && __builtin_cpu_supports("avx512f") &&
                   __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                   __builtin_cpu_supports("avx512dq") && maximum != "avx2";
    found.avx512vbmi2 = found.avx512 && __builtin_cpu_supports("avx512vbmi") &&
                        __builtin_cpu_supports("avx512vbmi2") && maximum != "avx512";
#endif
    return found;
  }();
  return sets;
}

// The tables of kernels that this machine can run; `tables` has the best first.
template <typename Table>
std::vector<const Table*> Runnable(std::initializer_list<const Table*> tables) {
  std::vector<const Table*> runnable;
  for (const Table* table : tables) {
    if (table != nullptr) runnable.push_back(table);
  }
  return runnable;
}

// Defines RunnableKernels() from the tables kAvx512Kernels, which needs the set `best`, kAvx2Kernels and
// kGenericKernels, best first. On processors other than x86 only the last one is compiled.
#if defined(__x86_64__)
#define JAXCCOMP_X86_TABLE(set, table) (RunnableInstructionSets().set ? &(table) : nullptr)
#else
#define JAXCCOMP_X86_TABLE(set, table) nullptr
#endif
#define JAXCCOMP_RUNNABLE_KERNELS(best)                                                           \
  extern const Kernels kGenericKernels, kAvx2Kernels, kAvx512Kernels;                             \
  std::span<const Kernels* const> RunnableKernels() {                                             \
    static const auto runnable = Runnable<Kernels>({JAXCCOMP_X86_TABLE(best, kAvx512Kernels),     \
                                                    JAXCCOMP_X86_TABLE(avx2, kAvx2Kernels),       \
                                                    &kGenericKernels});                           \
    return runnable;                                                                              \
  }

}  // namespace jaxccomp
