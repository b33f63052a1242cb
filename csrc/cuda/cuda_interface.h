// The C interface of libjaxccomp_cuda.so, which the engine opens at run time. Both must come from the same version:
// the engine checks jaxccomp_cuda_version first.
#pragma once

#include <string>

#include "common/host_device.h"
#include "cuda/gpu.h"
#include "cuda/stream_codecs.h"

extern "C" {

// JAXCCOMP_VERSION of the build.
JAXCCOMP_CUDA_EXPORT const char* jaxccomp_cuda_version();

// Calls this library's AddLibraryPath, whose list of paths is separate from the engine's.
JAXCCOMP_CUDA_EXPORT void jaxccomp_cuda_add_library_path(const char* name, const char* path);

// The number of GPUs; if 0, sets the reason, such as a driver that is missing or older than the build's CUDA.
JAXCCOMP_CUDA_EXPORT int jaxccomp_cuda_device_count(std::string* reason);

// The GPU with this ordinal: one object for the life of the process. If it cannot be used, returns null and sets the
// reason.
JAXCCOMP_CUDA_EXPORT jaxccomp::Gpu* jaxccomp_cuda_gpu(int ordinal, std::string* reason);

// The stream codecs, for all GPUs. Call jaxccomp_cuda_gpu for a GPU first, which loads its kernels.
JAXCCOMP_CUDA_EXPORT const jaxccomp::StreamCodecs* jaxccomp_cuda_stream_codecs();

}  // extern "C"
