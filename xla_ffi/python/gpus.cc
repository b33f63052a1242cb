#include "python/gpus.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda/library.h"
#include "handlers/cuda_devices.h"
#include "python/check.h"

namespace py = pybind11;

namespace jaxccomp {
namespace {

// Returns the dtype of that name; kOpaque8 for types that the engine only moves.
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

}  // namespace

void DefineGpus(py::module_& m) {
  m.def("cuda", &DescribeLibrary);
  m.def("cuda_runs", &Runs, py::arg("codec"), py::arg("dtype"));
  m.def("cuda_runs_on_streams", &RunsOnStreams, py::arg("codec"), py::arg("dtype"));
  // Returns the first error, or "".
  m.def("open_cuda_devices", [](const std::vector<std::pair<int, int64_t>>& numbers) {
    const py::gil_scoped_release released;
    return OpenCudaDevices(numbers).message();
  }, py::arg("numbers"));
}

}  // namespace jaxccomp
