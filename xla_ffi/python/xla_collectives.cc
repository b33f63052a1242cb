#include "python/xla_collectives.h"

#include <dlfcn.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "handlers/arguments.h"
#include "handlers/call_sites.h"
#include "python/check.h"
#include "xla_collectives/collectives.h"

namespace py = pybind11;

namespace jaxccomp {
namespace {

// Gives the library at that path, which jaxlib has loaded, the functions of the engine.
void Attach(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOLOAD | RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    Check({Code::kUnavailable, "jaxlib has not loaded " + path + ": MPITRAMPOLINE_LIB must name it before jaxlib is "
                               "imported, without MPITRAMPOLINE_DELAY_INIT and MPITRAMPOLINE_DLOPEN_MODE=dlmopen"});
  }
  const auto attach = reinterpret_cast<XlaAttach>(dlsym(library, "jaxccomp_xla_attach"));
  if (attach == nullptr) Check({Code::kUnavailable, path + " is not the library of jaxccomp"});
  if (const char* error = attach(&XlaFunctions(), JAXCCOMP_VERSION, sizeof(XlaTable))) {
    Check({Code::kFailedPrecondition, path + " cannot be used: " + error});
  }
  OnXlaError(&RememberError);
}

// Empty: every dtype.
std::optional<DType> DTypeOf(const std::string& name) {
  if (name.empty()) return std::nullopt;
  const std::optional<DType> found = FindDType(name);
  if (!found.has_value()) throw py::value_error("unknown dtype " + name);
  return found;
}

}  // namespace

void DefineXlaCollectives(py::module_& m) {
  m.def("attach_xla", &Attach, py::arg("path"));
  m.def("make_xla_group", [](std::vector<int64_t> devices) { Check(MakeXlaGroup(std::move(devices))); },
        py::arg("devices"));
  // Rows of operation, dtype (empty: every one), minimum of bytes and codec.
  m.def("set_xla_policy",
        [](const std::vector<std::tuple<std::string, std::string, int64_t, std::string>>& rows) {
          std::vector<XlaRule> rules;
          for (const auto& [operation, dtype, min_bytes, codec] : rows) {
            rules.push_back({operation, DTypeOf(dtype), min_bytes, codec});
          }
          SetXlaPolicy(std::move(rules));
        },
        py::arg("rules"));
  // The rule of one group's operations of this size.
  m.def("add_xla_rule",
        [](std::vector<int64_t> devices, const std::string& operation, const std::string& dtype, int64_t bytes,
           const std::string& codec, const std::string& algorithm) {
          AddXlaRule({operation, DTypeOf(dtype), bytes, codec, algorithm, std::move(devices), bytes});
        },
        py::arg("devices"), py::arg("operation"), py::arg("dtype"), py::arg("bytes"), py::arg("codec"),
        py::arg("algorithm"));
  // Returns the ranks for which XLA has made a communicator.
  m.def("end_xla_group", &EndXlaGroup);
}

}  // namespace jaxccomp
