// Helpers of the checks on a GPU: device memory, errors and times.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "common/status.h"
#include "lossy_codecs.h"

namespace jaxccomp::testing {

// Ends the program if CUDA fails: later results would be meaningless.
inline void Cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

class DeviceBytes {
 public:
  explicit DeviceBytes(size_t size, size_t offset = 0) : size_(size), offset_(offset) {
    Cuda(cudaMalloc(&memory_, size + offset + 1), "cudaMalloc");
    Cuda(cudaMemset(memory_, 0xa5, size + offset), "cudaMemset");
  }
  DeviceBytes(const Bytes& bytes, size_t offset) : DeviceBytes(bytes.size(), offset) {
    Put(bytes);
  }
  ~DeviceBytes() { cudaFree(memory_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  // Copies at most the buffer's size.
  void Put(const Bytes& bytes) const {
    Cuda(cudaMemcpy(data(), bytes.data(), std::min(bytes.size(), size_), cudaMemcpyHostToDevice),
         "copy to the device");
  }
  std::byte* data() const { return static_cast<std::byte*>(memory_) + offset_; }
  // Waits for all work on the device first.
  Bytes Take() const {
    Cuda(cudaDeviceSynchronize(), "a kernel");
    Bytes bytes(size_);
    Cuda(cudaMemcpy(bytes.data(), data(), size_, cudaMemcpyDeviceToHost), "copy from the device");
    return bytes;
  }

 private:
  const size_t size_;
  const size_t offset_;
  void* memory_ = nullptr;
};

// The median seconds of the work that `start` enqueues, after some warm-up calls.
inline double MedianSeconds(cudaStream_t stream, const std::function<void()>& start,
                            int calls = 25) {
  const int before = calls / 5;
  cudaEvent_t begin, end;
  Cuda(cudaEventCreate(&begin), "cudaEventCreate");
  Cuda(cudaEventCreate(&end), "cudaEventCreate");
  std::vector<double> seconds;
  for (int i = 0; i < calls; ++i) {
    Cuda(cudaEventRecord(begin, stream), "cudaEventRecord");
    start();
    Cuda(cudaEventRecord(end, stream), "cudaEventRecord");
    Cuda(cudaEventSynchronize(end), "what was measured");
    float milliseconds = 0;
    Cuda(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
    if (i >= before) seconds.push_back(milliseconds * 1e-3);
  }
  Cuda(cudaEventDestroy(begin), "cudaEventDestroy");
  Cuda(cudaEventDestroy(end), "cudaEventDestroy");
  std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
  return seconds[seconds.size() / 2];
}

}  // namespace jaxccomp::testing
