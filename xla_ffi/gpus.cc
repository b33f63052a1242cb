#include "gpus.h"

#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "cuda_devices.h"
#include "device/cuda_library.h"
#include "device_errors.h"

namespace py = pybind11;

namespace jaxccomp {
namespace {

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

bool Runs(const std::string& spec) {
  Result<bool> runs = CudaRuns(spec);
  Check(runs.status());
  return *runs;
}

bool RunsOnStreams(const std::string& spec, const std::string& dtype) {
  const Result<bool> runs = CudaRunsOnStreams(spec, dtype);
  Check(runs.status());
  return *runs;
}

}  // namespace

void DefineGpus(py::module_& m) {
  m.def("cuda", &DescribeLibrary);
  m.def("cuda_runs", &Runs, py::arg("codec"));
  m.def("cuda_runs_on_streams", &RunsOnStreams, py::arg("codec"), py::arg("dtype"));
  m.def("set_cuda_devices", &SetCudaDevices, py::arg("numbers"));
  // (text of the error or "", whether a handler has returned it).
  m.def("device_error", [] {
    const DeviceError error = FindDeviceError();
    return std::pair(error.status.message(), error.returned);
  });
}

}  // namespace jaxccomp
