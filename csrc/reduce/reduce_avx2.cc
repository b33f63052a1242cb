// Kernels for x86 with AVX2: compiled with -mavx2 -mfma -mf16c.
#if defined(__x86_64__)
#if !defined(__AVX2__) || !defined(__F16C__)
#error "compile this file with -mavx2 -mfma -mf16c"
#endif
#define JAXCCOMP_KERNELS kAvx2Kernels
#define JAXCCOMP_KERNELS_NAME "avx2"
#include "reduce/kernels.inl"
#endif
