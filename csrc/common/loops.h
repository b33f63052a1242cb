// Helpers of loops that are compiled once per instruction set.
#pragma once

// The iterations of the next loop are independent: an output equals an input or does not overlap it.
#if defined(__clang__)
#define JAXCCOMP_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define JAXCCOMP_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace jaxccomp {

// A T at any address in memory, whichever type the memory was declared with.
template <typename T>
struct InMemory {
  typedef T Type __attribute__((aligned(1), may_alias));
};
template <typename T>
using Unaligned = typename InMemory<T>::Type;

}  // namespace jaxccomp
