// Random numbers for x86 with AVX-512.
#if defined(__x86_64__)
#define JAXCCOMP_RANDOM_KERNELS kAvx512RandomKernels
#define JAXCCOMP_KERNELS_NAME "avx512"
#include "codec/random_bits.inl"
#endif
