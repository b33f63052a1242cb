// A library as csrc/device/cuda_interface.h describes it, with devices that need no GPU. What it says of
// itself is in the environment: JAXCCOMP_FAKE_CUDA_VERSION and JAXCCOMP_FAKE_CUDA_DEVICES (2).
#include <cstdlib>
#include <map>

#include "device/cuda_interface.h"
#include "fake_device.h"
#include "fake_stream_codecs.h"

namespace {

// By ordinal. They live as long as the process, which ends with whatever is under way on them.
std::map<int, jaxccomp::testing::FakeDevice*>& Devices() {
  static auto* devices = new std::map<int, jaxccomp::testing::FakeDevice*>;
  return *devices;
}

}  // namespace

const char* jaxccomp_cuda_version() {
  const char* version = std::getenv("JAXCCOMP_FAKE_CUDA_VERSION");
  return version != nullptr ? version : JAXCCOMP_VERSION;
}

// The last one that it was told, in its environment.
void jaxccomp_cuda_add_library_path(const char* name, const char* path) {
  setenv("JAXCCOMP_FAKE_CUDA_TOLD", (std::string(name) + "=" + path).c_str(), 1);
}

int jaxccomp_cuda_device_count(std::string* reason) {
  const char* count = std::getenv("JAXCCOMP_FAKE_CUDA_DEVICES");
  if (count == nullptr) return 2;
  if (std::atoi(count) == 0) *reason = "the fake driver is too old";
  return std::atoi(count);
}

jaxccomp::Device* jaxccomp_cuda_device(int ordinal, std::string* reason) {
  if (std::getenv("JAXCCOMP_FAKE_CUDA_BROKEN") != nullptr) {
    *reason = "the fake GPU is in use";
    return nullptr;
  }
  auto& device = Devices()[ordinal];
  if (device == nullptr) {
    device = new jaxccomp::testing::FakeDevice(static_cast<uint32_t>(ordinal) + 1);
  }
  return device;
}

const jaxccomp::StreamCodecs* jaxccomp_cuda_stream_codecs() {
  static const auto* const codecs = new jaxccomp::testing::FakeStreamCodecs([](const void* address) {
    for (const auto& [ordinal, device] : Devices()) {
      if (device->memory.Covers(address)) return device->memory.Shadow(address);
    }
    return static_cast<std::byte*>(const_cast<void*>(address));
  });
  return codecs;
}
