#include "python/ucx.h"

#include <pybind11/stl.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "python/check.h"
#include "transport/ucx/ucx_transport.h"

namespace py = pybind11;

namespace jaxccomp {
namespace {

// Until use_ucx has taken it.
struct OpenWorker {
  std::unique_ptr<UcxWorker> worker;
  std::string address;
};

std::unique_ptr<OpenWorker> Open(const std::string& net_devices) {
  auto opened = UcxWorker::Open(net_devices);
  Check(opened.status());
  auto own = std::make_unique<OpenWorker>();
  own->worker = std::move(*opened);
  own->address = own->worker->address();
  return own;
}

void Use(OpenWorker& open, const std::string& secret, const std::vector<py::bytes>& addresses,
         int64_t early_bytes, int64_t early_messages, double peer_timeout_seconds, bool grows) {
  UcxConfig config;
  if (open.worker == nullptr) Check({Code::kFailedPrecondition, "this worker is used already"});
  if (secret.size() != config.secret.size()) {
    Check({Code::kInvalidArgument, "a secret of " + std::to_string(config.secret.size()) +
                                       " bytes is needed, not of " + std::to_string(secret.size())});
  }
  std::memcpy(config.secret.data(), secret.data(), secret.size());
  config.addresses.assign(addresses.begin(), addresses.end());
  config.small_credit = {.bytes = early_bytes, .messages = early_messages};
  config.grows = grows;
  config.peer_timeout = std::chrono::milliseconds(static_cast<int64_t>(1000 * peer_timeout_seconds));
  Engine& engine = Engine::Get();
  config.process = engine.process();
  Check(engine.UseRemote([&](Receiver* receiver) -> Result<std::unique_ptr<Transport>> {
    auto made = UcxTransport::Create(std::move(open.worker), config, receiver);
    if (!made.ok()) return made.status();
    return std::unique_ptr<Transport>(std::move(*made));
  }));
}

}  // namespace

void DefineUcx(py::module_& m) {
  py::class_<OpenWorker>(m, "UcxWorker")
      .def(py::init(&Open), py::arg("net_devices"), py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("address", [](const OpenWorker& self) { return py::bytes(self.address); });
  m.def("use_ucx", &Use, py::arg("worker"), py::arg("secret"), py::arg("addresses"),
        py::arg("early_bytes"), py::arg("early_messages"), py::arg("peer_timeout_seconds"), py::arg("grows"));
  // (version or "", why it cannot be used or "").
  m.def("ucx", [] {
    const UcxLibrary& library = UcxLibrary::Get();
    return std::pair(library.version(), library.status().message());
  });
}

}  // namespace jaxccomp
