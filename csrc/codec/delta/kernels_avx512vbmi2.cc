// Kernels for x86 with AVX-512 F, BW, VL, DQ, VBMI and VBMI2.
#if defined(__x86_64__)
#define JAXCCOMP_KERNELS kAvx512Kernels
#define JAXCCOMP_KERNELS_NAME "avx512vbmi2"
#include "codec/delta/kernels.inl"
#endif
