// Kernels for x86 with AVX-512.
#if defined(__x86_64__)
#define JAXCCOMP_KERNELS kAvx512Kernels
#define JAXCCOMP_KERNELS_NAME "avx512"
#include "codec/cast/kernels.inl"
#endif
