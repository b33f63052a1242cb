// Kernels for x86 with AVX2.
#if defined(__x86_64__)
#define JAXCCOMP_KERNELS kAvx2Kernels
#define JAXCCOMP_KERNELS_NAME "avx2"
#include "codec/delta/kernels.inl"
#endif
