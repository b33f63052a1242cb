#include "python/gpus.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "device/cuda_library.h"
#include "engine/engine.h"
#include "handlers/cuda_devices.h"
#include "handlers/device_errors.h"
#include "python/check.h"

namespace py = pybind11;

namespace jaxccomp {
namespace {

// Types without arithmetic are bytes to the engine.
DType DTypeOf(std::string_view name) {
  const auto row = std::find_if(std::begin(kDTypeTable), std::end(kDTypeTable),
                                [&](const DTypeInfo& info) { return info.name == name; });
  return row != std::end(kDTypeTable) ? static_cast<DType>(row - kDTypeTable) : DType::kOpaque8;
}

py::dict DescribeLibrary() {
  const CudaLibrary& library = CudaLibrary::Get();
  const Result<int> count = library.CountDevices();
  py::dict row;
  row["version"] = library.version();
  row["library_missing"] = library.status().message();
  row["devices"] = count.ok() ? *count : 0;
  row["missing"] = count.status().message();
  return row;
}

std::vector<std::vector<uint8_t>> RowsOf(const std::vector<std::vector<int>>& all) {
  std::vector<std::vector<uint8_t>> rows;
  for (const auto& row : all) rows.emplace_back(row.begin(), row.end());
  return rows;
}

bool Runs(const std::string& spec, const std::string& dtype) {
  Result<bool> runs = CudaRuns(spec, DTypeOf(dtype));
  Check(runs.status());
  return *runs;
}

bool RunsOnStreams(const std::string& spec, const std::string& dtype) {
  const Result<bool> runs = CudaRunsOnStreams(spec, dtype);
  Check(runs.status());
  return *runs;
}

std::vector<Device*> OwnDevices() {
  std::vector<Device*> devices;
  for (const CudaDevice& each : FindCudaDevices()) devices.push_back(each.memory);
  return devices;
}

}  // namespace

void DefineGpus(py::module_& m) {
  m.def("cuda", &DescribeLibrary);
  m.def("cuda_runs", &Runs, py::arg("codec"), py::arg("dtype"));
  m.def("cuda_runs_on_streams", &RunsOnStreams, py::arg("codec"), py::arg("dtype"));
  // Why one of them cannot be opened, or "".
  m.def("open_cuda_devices", [](const std::vector<std::pair<int, int64_t>>& numbers) {
    const py::gil_scoped_release released;
    return OpenCudaDevices(numbers).message();
  }, py::arg("numbers"));
  // Sets aside what operations need with device_wait="stream".
  m.def("reserve_device_memory", [] {
    const py::gil_scoped_release released;
    Check(Engine::Get().ReserveMemory(OwnDevices()));
  });
  // (the engine's number, UUID) of each GPU of this process that can be used.
  m.def("cuda_uuids", [] {
    std::vector<std::pair<int64_t, py::bytes>> rows;
    for (const CudaDevice& each : FindCudaDevices()) {
      const Device::Uuid uuid = each.memory->uuid();
      rows.emplace_back(each.number, py::bytes(reinterpret_cast<const char*>(uuid.data()), uuid.size()));
    }
    return rows;
  });
  // Device IPC: this process's offer, what it can import of all processes' (1 or 0, and
  // why not, of each), and the agreement that follows from what each can.
  m.def("offer_ipc", [] { return py::bytes(Engine::Get().OfferMemory(OwnDevices())); });
  m.def("open_ipc", [](const std::vector<py::bytes>& offers) {
    std::vector<std::string> texts(offers.begin(), offers.end()), reasons;
    const std::vector<uint8_t> opened = Engine::Get().OpenMemory(texts, &reasons);
    return std::pair(std::vector<int>(opened.begin(), opened.end()), reasons);
  }, py::arg("offers"));
  m.def("agree_on_ipc", [](const std::vector<std::vector<int>>& opened) {
    Engine::Get().AgreeOnIpc(RowsOf(opened));
  }, py::arg("opened"));
  // Messages of device memory by MPI: on how many GPUs this process takes part (0: none, and why), with
  // whom it works (1 or 0, and why not, by process), and the agreement that follows.
  m.def("prepare_device_mpi", [] {
    const Result<int> taken = Engine::Get().PrepareCudaAware(OwnDevices());
    return std::pair(taken.ok() ? *taken : 0, taken.status().message());
  });
  m.def("warm_up_device_mpi", [](const std::vector<int>& takes_part, const std::vector<int>& partners,
                                 double timeout_seconds) {
    const std::vector<uint8_t> with(partners.begin(), partners.end());
    const py::gil_scoped_release released;
    Result<CudaAwareMpi::Warmed> warmed =
        Engine::Get().WarmUpCudaAware(takes_part, with, timeout_seconds);
    Check(warmed.status());
    return std::pair(std::vector<int>(warmed->works.begin(), warmed->works.end()), warmed->reasons);
  }, py::arg("takes_part"), py::arg("partners"), py::arg("timeout_seconds"));
  m.def("agree_on_device_mpi", [](const std::vector<std::vector<int>>& works) {
    Engine::Get().AgreeOnCudaAware(RowsOf(works));
  }, py::arg("works"));
  // (text of the error or "", whether a handler has returned it).
  m.def("device_error", [] {
    const DeviceError error = FindDeviceError();
    return std::pair(error.status.message(), error.returned);
  });
}

}  // namespace jaxccomp
