#include "handlers/cuda_devices.h"

#include <map>
#include <mutex>
#include <optional>

#include "codec/registry.h"
#include "cuda/library.h"
#include "handlers/arguments.h"

namespace jaxccomp {
namespace {

struct Opened {
  int64_t number;
  Result<Stage*> stage;
};

// By CUDA's ordinal.
struct Devices {
  std::mutex mutex;
  std::map<int, Opened> by_ordinal;
};

Devices& Own() {
  static auto* devices = new Devices;
  return *devices;
}

Result<Opened> Find(int ordinal) {
  Devices& own = Own();
  std::lock_guard lock(own.mutex);
  const auto known = own.by_ordinal.find(ordinal);
  if (known != own.by_ordinal.end()) return known->second;
  return Status(Code::kFailedPrecondition,
                "GPU " + std::to_string(ordinal) +
                    " has not been opened: call jaxccomp.init() after the GPU has become a device of JAX");
}

}  // namespace

Status OpenCudaDevices(const std::vector<std::pair<int, int64_t>>& numbers) {
  std::map<int, Opened> opened;
  Status first;
  for (const auto& [ordinal, number] : numbers) {
    const Result<Gpu*> gpu = CudaLibrary::Get().FindGpu(ordinal);
    if (first.ok()) first = gpu.status();
    // Leaked on purpose: XLA's threads may use the stage until the process ends.
    Result<Stage*> stage = gpu.ok() ? Result<Stage*>(new Stage(*gpu)) : Result<Stage*>(gpu.status());
    opened.emplace(ordinal, Opened{number, std::move(stage)});
  }
  Devices& own = Own();
  std::lock_guard lock(own.mutex);
  own.by_ordinal = std::move(opened);
  return first;
}

Result<CudaDevice> FindCudaDevice(int ordinal) {
  const Result<Opened> found = Find(ordinal);
  if (!found.ok()) return found.status();
  if (!found->stage.ok()) return found->stage.status();
  return CudaDevice{found->number, *found->stage};
}

std::vector<CudaDevice> FindCudaDevices() {
  std::vector<CudaDevice> devices;
  Devices& own = Own();
  std::lock_guard lock(own.mutex);
  for (const auto& [ordinal, opened] : own.by_ordinal) {
    if (opened.stage.ok()) devices.push_back({opened.number, *opened.stage});
  }
  return devices;
}

Result<const StreamCodecs*> FindCudaStreamCodecs(int ordinal) {
  const Result<CudaDevice> device = FindCudaDevice(ordinal);
  if (!device.ok()) return device.status();
  return CudaLibrary::Get().stream_codecs();
}

Result<bool> CudaRuns(std::string_view spec, DType dtype) {
  const std::vector<CudaDevice> devices = FindCudaDevices();
  if (devices.empty()) return Status(Code::kUnavailable, "no GPU has been opened");
  auto codec = LookupCodec(spec);
  if (!codec.ok()) return codec.status();
  return StageRuns(*devices[0].stage->gpu(), codec->get(), dtype);
}

Result<bool> CudaRunsOnStreams(std::string_view spec, std::string_view dtype) {
  const auto codec = LookupCodec(spec);
  if (!codec.ok()) return codec.status();
  const std::optional<DType> known = FindDType(dtype);
  return *codec != nullptr && known && CudaLibrary::Get().RunsOnStreams(**codec, *known);
}

}  // namespace jaxccomp
