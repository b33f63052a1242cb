#include "python/ucx.h"

#include <pybind11/stl.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/membership.h"
#include "python/check.h"
#include "transport/cma/guards.h"
#include "transport/cma/peer_memory.h"
#include "transport/ucx/ucx_transport.h"

namespace py = pybind11;

namespace jaxccomp {
namespace {

// An open worker; use_ucx moves `worker` out.
struct OpenWorker {
  std::unique_ptr<UcxWorker> worker;
  std::string address;
  // Validity tokens, by which other processes of this host verify that they read this process's memory.
  Guards guards;
  UcxIncoming::Memories memories;   // of the processes that this one may read
};

std::unique_ptr<OpenWorker> Open(const std::string& net_devices, bool shares_memory) {
  auto opened = UcxWorker::Open(net_devices, shares_memory);
  Check(opened.status());
  auto own = std::make_unique<OpenWorker>();
  own->worker = std::move(*opened);
  own->address = own->worker->address();
  return own;
}

// Returns this process's validity token as bytes; an empty token if the system does not let others read its memory.
py::bytes LetRead(OpenWorker& open) {
  GuardMark mark;
  if (Guards::AllowReads().ok()) mark = open.guards.Take();
  return {reinterpret_cast<const char*>(&mark), sizeof(mark)};
}

// Returns for each process whether this one can read its memory. `all`: by process, its pid (0 on another host) and its
// result of let_read.
std::vector<bool> FindReadable(OpenWorker& open, const std::vector<std::pair<pid_t, std::string>>& all) {
  std::vector<bool> found;
  open.memories.clear();
  for (const auto& [pid, told] : all) {
    GuardMark mark;
    if (told.size() != sizeof(mark)) {
      Check({Code::kInvalidArgument, "a validity token has " + std::to_string(sizeof(mark)) + " bytes, not " +
                                         std::to_string(told.size())});
    }
    std::memcpy(&mark, told.data(), sizeof(mark));
    auto memory = pid > 0 ? std::make_shared<PeerMemory>(pid) : nullptr;
    if (memory != nullptr && !memory->Has(mark)) memory.reset();
    found.push_back(memory != nullptr);
    open.memories.push_back(std::move(memory));
  }
  return found;
}

void Use(OpenWorker& open, const std::string& secret, const std::vector<py::bytes>& addresses,
         const std::vector<bool>& readers, int64_t early_bytes, int64_t early_messages,
         double peer_timeout_seconds, bool grows) {
  UcxConfig config;
  if (open.worker == nullptr) Check({Code::kFailedPrecondition, "this worker is already in use"});
  if (secret.size() != config.secret.size()) {
    Check({Code::kInvalidArgument, "the secret must have " + std::to_string(config.secret.size()) +
                                       " bytes, not " + std::to_string(secret.size())});
  }
  std::memcpy(config.secret.data(), secret.data(), secret.size());
  config.addresses.assign(addresses.begin(), addresses.end());
  config.memories = open.memories;
  config.readers = readers;
  config.small_credit = {.bytes = early_bytes, .messages = early_messages};
  config.grows = grows;
  config.peer_timeout = std::chrono::milliseconds(static_cast<int64_t>(1000 * peer_timeout_seconds));
  Engine& engine = Engine::Get();
  config.process = engine.membership().process();
  Check(engine.UseRemote([&](Receiver* receiver) -> Result<std::unique_ptr<Transport>> {
    auto made = UcxTransport::Create(std::move(open.worker), config, receiver);
    if (!made.ok()) return made.status();
    return std::unique_ptr<Transport>(std::move(*made));
  }));
}

}  // namespace

void DefineUcx(py::module_& m) {
  py::class_<OpenWorker>(m, "UcxWorker")
      .def(py::init(&Open), py::arg("net_devices"), py::arg("shares_memory"),
           py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("address", [](const OpenWorker& self) { return py::bytes(self.address); })
      .def("let_read", &LetRead)
      .def("find_readable", &FindReadable, py::arg("processes"));
  m.def("use_ucx", &Use, py::arg("worker"), py::arg("secret"), py::arg("addresses"),
        py::arg("readers"), py::arg("early_bytes"), py::arg("early_messages"),
        py::arg("peer_timeout_seconds"), py::arg("grows"));
  // Whether the system permits reading a process's memory (process_vm_readv).
  m.def("reads_memory", [] {
    Guards guards;
    return PeerMemory(getpid()).Has(guards.Take());
  });
  // Returns (UCX's version or "", the reason why UCX cannot be used or "").
  m.def("ucx", [] {
    const UcxLibrary& library = UcxLibrary::Get();
    return std::pair(library.version(), library.status().message());
  });
}

}  // namespace jaxccomp
