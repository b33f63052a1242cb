// Macros for functions that nvcc also compiles for the GPU. They are empty for other compilers.
#pragma once

#if defined(__CUDACC__)
#define JAXCCOMP_HOST_DEVICE __host__ __device__
#else
#define JAXCCOMP_HOST_DEVICE
#endif

// Unrolls the next loop, so that arrays that it indexes can stay in registers.
#if defined(__CUDA_ARCH__)
#define JAXCCOMP_UNROLL _Pragma("unroll")
#else
#define JAXCCOMP_UNROLL
#endif

// For a function that is hardly ever called: keeps its code out of its callers.
#define JAXCCOMP_RARE __attribute__((noinline))

// Exports a function from the library of kernels.
#define JAXCCOMP_CUDA_EXPORT __attribute__((visibility("default")))
