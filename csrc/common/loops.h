// What loops share that are compiled once per instruction set.
#pragma once

// The iterations of the next loop do not depend on each other: an output equals an input or is
// apart from it.
#if defined(__clang__)
#define JAXCCOMP_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define JAXCCOMP_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace jaxccomp {

// T as it lies in memory at any address, whatever the memory was declared as.
template <typename T>
struct InMemory {
  typedef T Type __attribute__((aligned(1), may_alias));
};
template <typename T>
using Unaligned = typename InMemory<T>::Type;

}  // namespace jaxccomp
