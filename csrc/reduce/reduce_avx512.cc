// Kernels for x86 with AVX-512: compiled with -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2
// -mfma -mf16c.
#if defined(__x86_64__)
#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512VL__) || \
    !defined(__AVX512DQ__)
#error "compile this file with -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c"
#endif
#define JAXCCOMP_KERNELS kAvx512Kernels
#define JAXCCOMP_KERNELS_NAME "avx512"
#include "reduce/kernels.inl"
#endif
