// A library with the interface of csrc/cuda/cuda_interface.h, whose GPUs need no hardware. The environment sets its
// version, JAXCCOMP_FAKE_CUDA_VERSION, and its device count, JAXCCOMP_FAKE_CUDA_DEVICES (2).
#include <cstdlib>
#include <map>

#include "cuda/cuda_interface.h"
#include "fake_gpu.h"
#include "fake_stream_codecs.h"

namespace {

// By ordinal. Never freed, because work may still run on them when the process ends.
std::map<int, jaxccomp::testing::FakeGpu*>& Gpus() {
  static auto* gpus = new std::map<int, jaxccomp::testing::FakeGpu*>;
  return *gpus;
}

}  // namespace

const char* jaxccomp_cuda_version() {
  const char* version = std::getenv("JAXCCOMP_FAKE_CUDA_VERSION");
  return version != nullptr ? version : JAXCCOMP_VERSION;
}

// Stores the last path in the environment.
void jaxccomp_cuda_add_library_path(const char* name, const char* path) {
  setenv("JAXCCOMP_FAKE_CUDA_TOLD", (std::string(name) + "=" + path).c_str(), 1);
}

int jaxccomp_cuda_device_count(std::string* reason) {
  const char* count = std::getenv("JAXCCOMP_FAKE_CUDA_DEVICES");
  if (count == nullptr) return 2;
  if (std::atoi(count) == 0) *reason = "the fake driver is too old";
  return std::atoi(count);
}

jaxccomp::Gpu* jaxccomp_cuda_gpu(int ordinal, std::string* reason) {
  if (std::getenv("JAXCCOMP_FAKE_CUDA_BROKEN") != nullptr) {
    *reason = "the fake GPU is in use";
    return nullptr;
  }
  auto& gpu = Gpus()[ordinal];
  if (gpu == nullptr) gpu = new jaxccomp::testing::FakeGpu("fake:" + std::to_string(ordinal));
  return gpu;
}

const jaxccomp::StreamCodecs* jaxccomp_cuda_stream_codecs() {
  static const auto* const codecs = new jaxccomp::testing::FakeStreamCodecs([](const void* address) {
    for (const auto& [ordinal, gpu] : Gpus()) {
      if (gpu->memory.Covers(address)) return gpu->memory.Shadow(address);
    }
    return static_cast<std::byte*>(const_cast<void*>(address));
  });
  return codecs;
}
