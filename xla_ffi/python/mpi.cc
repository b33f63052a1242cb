#include "python/mpi.h"

#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/dtype.h"
#include "engine/engine.h"
#include "mpi_collectives/mpi_collectives.h"
#include "python/check.h"
#include "transport/mpi/mpi_transport.h"

namespace py = pybind11;

namespace jaxccomp {
namespace {

void UseMpi(uint64_t comm, uint64_t byte_type, std::vector<int> hosts, int64_t remote_unit_bytes,
            int64_t early_bytes, int64_t early_messages) {
  Check(Engine::Get().UseRemote(
      [&](Receiver* receiver) -> Result<std::unique_ptr<Transport>> {
        MpiConfig config;
        config.comm = comm;
        config.byte_type = byte_type;
        config.hosts = hosts;
        config.remote_unit_bytes = remote_unit_bytes;
        config.small_credit = {.bytes = early_bytes, .messages = early_messages};
        auto made = MpiTransport::Create(config, receiver);
        if (!made.ok()) return made.status();
        return std::unique_ptr<Transport>(std::move(*made));
      }));
}

void UseMpiCollectives(uint64_t comm, uint64_t errors_return, uint64_t in_place, int64_t tag_ub,
                       const std::map<std::string, uint64_t>& types,
                       const std::map<std::string, uint64_t>& ops) {
  MpiCollectivesConfig config;
  config.comm = comm;
  config.errors_return = errors_return;
  config.in_place = in_place;
  config.tag_ub = tag_ub;
  for (int i = 0; i < kDTypeCount; ++i) {
    config.types[static_cast<size_t>(i)] = types.at(std::string(kDTypeTable[i].name));
  }
  for (int i = 0; i < kReduceOpCount; ++i) {
    config.ops[static_cast<size_t>(i)] = ops.at(std::string(Name(static_cast<ReduceOp>(i))));
  }
  auto made = MpiCollectives::Create(config);
  Check(made.status());
  Engine::Get().UseLibrary(std::move(*made));
}

}  // namespace

void DefineMpi(py::module_& m) {
  m.def("use_mpi", &UseMpi, py::arg("comm_handle"), py::arg("byte_handle"), py::arg("hosts"),
        py::arg("remote_unit_bytes"), py::arg("early_bytes"), py::arg("early_messages"));
  // backend="mpi": MPI handles by the engine's names of dtypes and reductions.
  m.def("use_mpi_collectives", &UseMpiCollectives, py::arg("comm_handle"),
        py::arg("errors_return_handle"), py::arg("in_place"), py::arg("tag_ub"), py::arg("types"),
        py::arg("ops"));
}

}  // namespace jaxccomp
