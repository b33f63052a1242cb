// Random numbers for x86 with AVX2.
#if defined(__x86_64__)
#define JAXCCOMP_RANDOM_KERNELS kAvx2RandomKernels
#define JAXCCOMP_KERNELS_NAME "avx2"
#include "codec/random_bits.inl"
#endif
