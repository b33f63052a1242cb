// What functions need that nvcc compiles for the GPU, too. Nothing to any other compiler.
#pragma once

#if defined(__CUDACC__)
#define JAXCCOMP_HOST_DEVICE __host__ __device__
#else
#define JAXCCOMP_HOST_DEVICE
#endif

// The next loop is unrolled: arrays that it indexes can stay in registers then.
#if defined(__CUDA_ARCH__)
#define JAXCCOMP_UNROLL _Pragma("unroll")
#else
#define JAXCCOMP_UNROLL
#endif

// A function that is hardly ever called: its code stays out of the way of what calls it.
#define JAXCCOMP_RARE __attribute__((noinline))

// Seen from outside of the library of kernels.
#define JAXCCOMP_CUDA_EXPORT __attribute__((visibility("default")))
