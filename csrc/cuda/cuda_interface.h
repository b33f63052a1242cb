// What libjaxccomp_cuda.so gives to the engine, which opens it at run time. One build makes both: the
// engine asks for the version before anything else.
#pragma once

#include <string>

#include "common/host_device.h"
#include "cuda/gpu.h"
#include "cuda/stream_codecs.h"

extern "C" {

// JAXCCOMP_VERSION of the build.
JAXCCOMP_CUDA_EXPORT const char* jaxccomp_cuda_version();

// Where else to look for a library that this one opens itself: AddLibraryPath of the engine, whose
// paths are its own.
JAXCCOMP_CUDA_EXPORT void jaxccomp_cuda_add_library_path(const char* name, const char* path);

// How many GPUs there are; 0 with the reason where there is none, such as a driver that is missing or
// older than the build's CUDA.
JAXCCOMP_CUDA_EXPORT int jaxccomp_cuda_device_count(std::string* reason);

// The GPU of that ordinal, which lives as long as the process; the same one each time. Null with the
// reason when it cannot be used.
JAXCCOMP_CUDA_EXPORT jaxccomp::Gpu* jaxccomp_cuda_gpu(int ordinal, std::string* reason);

// The codecs of a fixed rate on the streams of programs, of all GPUs. A GPU must have been asked for
// before, as that makes its kernels ready.
JAXCCOMP_CUDA_EXPORT const jaxccomp::StreamCodecs* jaxccomp_cuda_stream_codecs();

}  // extern "C"
