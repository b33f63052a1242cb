// Kernels for every processor of the architecture: compiled with its baseline flags.
#define JAXCCOMP_KERNELS kGenericKernels
#define JAXCCOMP_KERNELS_NAME "generic"
#include "codec/cast/kernels.inl"
