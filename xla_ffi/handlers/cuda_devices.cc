#include "handlers/cuda_devices.h"

#include <map>
#include <mutex>
#include <optional>

#include "codec/registry.h"
#include "device/cuda_library.h"
#include "handlers/arguments.h"

namespace jaxccomp {
namespace {

// By CUDA's ordinal; `memory` is null until the GPU is first used.
struct Devices {
  std::mutex mutex;
  std::map<int, CudaDevice> by_ordinal;
};

Devices& Own() {
  static auto* devices = new Devices;
  return *devices;
}

Status UnknownToJax(int ordinal) {
  return {Code::kFailedPrecondition,
          "GPU " + std::to_string(ordinal) +
              " is none that JAX had when jaxccomp.init() was called"};
}

}  // namespace

void SetCudaDevices(const std::vector<std::pair<int, int64_t>>& numbers) {
  Devices& own = Own();
  std::lock_guard lock(own.mutex);
  own.by_ordinal.clear();
  for (const auto& [ordinal, number] : numbers) own.by_ordinal[ordinal] = {number, nullptr};
}

Result<CudaDevice> FindCudaDevice(int ordinal) {
  Devices& own = Own();
  std::lock_guard lock(own.mutex);
  const auto known = own.by_ordinal.find(ordinal);
  if (known != own.by_ordinal.end() && known->second.memory != nullptr) return known->second;
  Result<Device*> device = CudaLibrary::Get().FindDevice(ordinal);
  if (!device.ok()) return device.status();
  if (known == own.by_ordinal.end()) return UnknownToJax(ordinal);
  known->second.memory = *device;
  return known->second;
}

Result<int64_t> FindCudaNumber(int ordinal) {
  Devices& own = Own();
  std::lock_guard lock(own.mutex);
  const auto known = own.by_ordinal.find(ordinal);
  if (known == own.by_ordinal.end()) return UnknownToJax(ordinal);
  return known->second.number;
}

std::vector<CudaDevice> FindCudaDevices() {
  std::vector<int> ordinals;
  {
    Devices& own = Own();
    std::lock_guard lock(own.mutex);
    for (const auto& [ordinal, device] : own.by_ordinal) ordinals.push_back(ordinal);
  }
  std::vector<CudaDevice> devices;
  for (int ordinal : ordinals) {
    if (Result<CudaDevice> found = FindCudaDevice(ordinal); found.ok()) {
      devices.push_back(*found);
    }
  }
  return devices;
}

Result<bool> CudaRuns(std::string_view spec, DType dtype) {
  int ordinal = 0;
  {
    Devices& own = Own();
    std::lock_guard lock(own.mutex);
    if (!own.by_ordinal.empty()) ordinal = own.by_ordinal.begin()->first;
  }
  Result<Device*> device = CudaLibrary::Get().FindDevice(ordinal);
  if (!device.ok()) return device.status();
  auto codec = LookupCodec(spec);
  if (!codec.ok()) return codec.status();
  return *codec == nullptr || !(*codec)->Supports(dtype) || (*device)->Runs(**codec, dtype);
}

Result<bool> CudaRunsOnStreams(std::string_view spec, std::string_view dtype) {
  const auto codec = LookupCodec(spec);
  if (!codec.ok()) return codec.status();
  const std::optional<DType> known = FindDType(dtype);
  return *codec != nullptr && known && CudaLibrary::Get().RunsOnStreams(**codec, *known);
}

}  // namespace jaxccomp
