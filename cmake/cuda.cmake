# Builds libjaxccomp_cuda.so from csrc/cuda: a separate shared library, so that machines without a GPU do not need it.

# One file per row.
set(CUDA_KERNEL_SOURCES
    csrc/cuda/kernels/fixed_rate/fixed_rate_decode.cu
    csrc/cuda/kernels/fixed_rate/fixed_rate_encode.cu
    csrc/cuda/kernels/fixed_rate/fixed_rate_sum.cu
    csrc/cuda/kernels/lossless/lossless.cu
    csrc/cuda/kernels/nvcomp/nvcomp.cu)
# Other sources that include CUDA's headers; CUDA_LOGIC_SOURCES do not.
set(CUDA_DEVICE_SOURCES
    csrc/cuda/host/library.cu
    csrc/cuda/host/runtime_api.cu)

include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "JAXCCOMP_BUILD_CUDA=ON needs the CUDA compiler, and no nvcc was found: put it "
                      "on the PATH, name it with -DCMAKE_CUDA_COMPILER=/path/to/nvcc, or leave "
                      "JAXCCOMP_BUILD_CUDA off")
endif()
# A100, H100 and H200, B200, and PTX for later GPUs. `make gpu-bundle` sets fewer.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100)
endif()
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
# Older CMakes do not know the C++20 flag of newer nvcc.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
# Link the CUDA runtime statically: it opens the driver on first use, so that the library loads without a driver,
# and is independent of the runtime that JAX installs.
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)

# Bit-identical results to the CPU: no fused multiply-add, no flushing of subnormals, correctly rounded division.
list(JOIN HOST_FLAGS "," HOST_FLAG_LIST)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)   # for tests/gpu/report_kernels.py
set(CUDA_FLAGS -fmad=false -ftz=false -prec-div=true -prec-sqrt=true --expt-relaxed-constexpr
    -Xcompiler=${HOST_FLAG_LIST} -Xptxas=-warn-spills,-warn-lmem-usage)

find_package(CUDAToolkit REQUIRED)
add_library(jaxccomp_cuda SHARED ${CUDA_KERNEL_SOURCES} ${CUDA_DEVICE_SOURCES} ${CUDA_LOGIC_SOURCES})
target_include_directories(jaxccomp_cuda PUBLIC csrc)
target_compile_definitions(jaxccomp_cuda PRIVATE JAXCCOMP_VERSION="${JAXCCOMP_VERSION}")
target_compile_options(jaxccomp_cuda PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${CUDA_FLAGS}>")
target_link_libraries(jaxccomp_cuda PRIVATE jaxccomp_engine)
set(CUDA_EXPORTS ${CMAKE_CURRENT_SOURCE_DIR}/cmake/cuda_exports.map)
target_link_options(jaxccomp_cuda PRIVATE -Wl,--exclude-libs,ALL -Wl,--version-script=${CUDA_EXPORTS})
set_target_properties(jaxccomp_cuda PROPERTIES LINK_DEPENDS ${CUDA_EXPORTS})

# Tests to run on a machine with a GPU.
add_executable(jaxccomp_gpu_tests tests/gpu/main.cc tests/gpu/fixed_rate.cc tests/gpu/lossless.cc
               tests/gpu/nvcomp.cc tests/gpu/stage.cc)
target_include_directories(jaxccomp_gpu_tests PRIVATE tests/cpp tests/gpu)
target_link_libraries(jaxccomp_gpu_tests PRIVATE jaxccomp_cuda jaxccomp_engine CUDA::cudart_static)
