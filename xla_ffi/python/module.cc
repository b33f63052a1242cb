// jaxccomp._core: Python bindings of the engine.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "collective/algorithm_spec.h"
#include "collective/defaults.h"
#include "common/instruction_sets.h"
#include "common/interrupts.h"
#include "engine/engine.h"
#include "engine/membership.h"
#include "handlers/call_sites.h"
#include "handlers/codec_handlers.h"
#include "handlers/platform_handlers.h"
#include "python/check.h"
#include "python/codecs.h"
#include "python/ending.h"
#include "python/gpus.h"
#include "python/mpi.h"
#include "python/program_threads.h"
#include "python/python_threads.h"
#include "python/planner.h"
#include "python/records.h"
#include "python/schedules.h"
#include "python/ucx.h"
#include "python/xla_collectives.h"
#include "xla_collectives/collectives.h"

namespace py = pybind11;

namespace jaxccomp {
namespace {

template <typename F>
py::capsule Target(F* function) {
  return py::capsule(reinterpret_cast<void*>(function), "xla._CUSTOM_CALL_TARGET");
}

// The arguments of jax.ffi's registration for an XLA platform.
py::dict Registration(const PlatformHandlers& handlers) {
  py::dict stages;
  stages["instantiate"] = Target(handlers.instantiate);
  stages["execute"] = Target(handlers.execute);
  py::dict type;
  type["type_id"] = py::capsule(handlers.type_id);
  type["type_info"] = py::capsule(const_cast<xla::ffi::TypeInfo*>(handlers.type_info));
  py::dict row;
  row["stages"] = stages;
  row["state_type"] = type;
  return row;
}

// The handlers of codecs, by target name.
py::dict CodecRegistrations() {
  py::dict targets;
  for (const CodecHandler& handler : CodecHandlers()) {
    py::dict stages;
    stages["execute"] = Target(handler.execute);
    targets[handler.name] = stages;
  }
  return targets;
}

py::dict Registrations() {
  py::dict platforms;
  platforms["cpu"] = Registration(CpuHandlers());
  platforms["cpu"]["pass"] = Target(Pass);
  platforms["cpu"]["count"] = Registration(CountHandlers());
  platforms["cuda"] = Registration(CudaHandlers());
  return platforms;
}

py::dict Describe() {
  py::list algorithms;
  for (const Algorithm& a : AlgorithmTable()) {
    py::dict row;
    row["collective"] = std::string(Info(a.collective).name);
    row["name"] = std::string(a.name);
    const std::string by_default = DescribeDefault(a);
    row["description"] =
        std::string(a.description) + (by_default.empty() ? "" : "; " + by_default);
    row["sends_partial"] = a.sends_partial;
    algorithms.append(row);
  }
  py::list transports;
  transports.append("local");
  const std::string remote = Engine::Find() != nullptr ? Engine::Find()->RemoteName() : "";
  if (!remote.empty()) transports.append(remote);
  py::dict all;
  all["transports"] = transports;
  all["algorithms"] = algorithms;
  all["instruction_set"] = std::string(RunnableInstructionSets().best());
  all["ffi_api"] = std::to_string(XLA_FFI_API_MAJOR) + "." + std::to_string(XLA_FFI_API_MINOR);
  return all;
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  m.doc() = "The native engine of jaxccomp.";
  m.def("registrations", &Registrations);
  m.def("codec_registrations", &CodecRegistrations);
  m.def("configure", [](int process, int processes) {
    Check(Engine::Configure(process, processes));
    Engine::Get().SetCallsOneByOne([] { return !HasXlaGroups() && HasOneThread(); });
  }, py::arg("process"), py::arg("processes"));
  m.def("set_devices", [](const std::vector<std::pair<int64_t, int>>& devices) {
    Engine::Get().membership().SetDevices(devices);
  });
  m.def("set_hosts", [](std::vector<int> hosts) { Engine::Get().membership().SetHosts(std::move(hosts)); },
        py::arg("hosts"));
  m.def("check_algorithm", [](const std::string& collective, const std::string& algorithm) {
    Result<Collective> parsed = ParseCollective(collective);
    Check(parsed.status());
    Check(ParseAlgorithm(*parsed, algorithm).status());
  }, py::arg("collective"), py::arg("algorithm"));
  m.def("add_communicator", [](const std::string& name, std::vector<int> processes) {
    Check(Engine::Get().membership().AddCommunicator(name, std::move(processes)));
  }, py::arg("name"), py::arg("processes"));
  // Adds processes after the existing ones, by their addresses on the transport.
  m.def("add_processes", [](const std::vector<py::bytes>& addresses) {
    Check(Engine::Get().membership().AddProcesses({addresses.begin(), addresses.end()}));
  }, py::arg("addresses"));
  m.def("set_failed", [](int process, const std::string& why) { Engine::Get().membership().SetFailed(process, why); },
        py::arg("process"), py::arg("why"), py::call_guard<py::gil_scoped_release>());
  m.def("close_program", [](const std::string& name) { CloseProgram(name); }, py::arg("name"));
  m.def("close_program",
        [](const std::string& name, const std::string& thread) { CloseProgram(name, thread); },
        py::arg("name"), py::arg("thread"));
  m.def("free_communicator", [](const std::string& name) {
    if (Engine::Find() != nullptr) Check(Engine::Find()->membership().FreeCommunicator(name));
  }, py::arg("name"));
  // `all`: (pid, start time) of each process of the world; pid 0 on other hosts.
  m.def("set_system_processes", [](const std::vector<std::pair<int64_t, uint64_t>>& all) {
    std::vector<SystemProcess> processes;
    for (const auto& [pid, start_time] : all) processes.push_back({pid, start_time});
    Engine::Get().membership().SetSystemProcesses(std::move(processes));
    Engine::Get().SetInterruptJudge(&IsHeldUp);
    JoinLastExit();
  }, py::arg("processes"));
  m.def("start_time", &StartTimeOf, py::arg("pid"));
  m.def("announce", [](const std::string& how) {
    if (Engine::Find() != nullptr) Engine::Find()->membership().Announce(how);
  }, py::arg("how"), py::call_guard<py::gil_scoped_release>());
  // Returns for each failed process the reason, and whether the process is dead: true if it no longer answers, false if
  // it has reported its own end.
  m.def("find_failed", [] {
    std::map<int, std::pair<std::string, bool>> all;
    if (Engine::Find() == nullptr) return all;
    for (const auto& [process, failure] : Engine::Find()->membership().FindFailed()) {
      all[process] = {failure.why.message(), failure.dead};
    }
    return all;
  }, py::call_guard<py::gil_scoped_release>());
  m.def("recent_errors", &RecentErrors);
  m.def("let_group_agree", [] { Engine::Get().membership().LetGroupAgree(); });
  // Returns the error by process, for processes that only others have reported as failed.
  m.def("find_reported", [] {
    return Engine::Find() == nullptr ? std::map<int, std::string>{} : Engine::Find()->membership().FindReported();
  }, py::call_guard<py::gil_scoped_release>());
  m.def("forget_reports", [] { Engine::Get().membership().ForgetReports(); },
        py::call_guard<py::gil_scoped_release>());
  m.def("interrupts", &InterruptCount);
  m.def("end_within", &EndWithin, py::arg("seconds"), py::arg("status"), py::arg("text"));
  m.def("end_in_time", &EndInTime);
  m.def("bound_last_exit", &BoundLastExit, py::arg("seconds"), py::arg("status"), py::arg("text"));
  m.def("set_option", [](const std::string& name, const std::string& value) {
    Check(Engine::Get().SetOption(name, value));
  }, py::arg("name"), py::arg("value"));
  m.def("name_launching_threads", &NameLaunchingThreads, py::arg("current"));
  m.def("callback_failed", [](const std::string& what) { Engine::Get().CallbackFailed(what); },
        py::arg("what"), py::call_guard<py::gil_scoped_release>());
  m.def("check_launches", [](py::function place) {
    // Leaked on purpose: launches may outlive the interpreter.
    auto* const kept = new py::function(std::move(place));
    Engine::Get().CheckLaunches([kept]() -> std::string {
      py::gil_scoped_acquire gil;
      try {
        return py::cast<std::string>((*kept)());
      } catch (const std::exception& error) {
        return std::string("unknown: ") + error.what();
      }
    });
  }, py::arg("place"));
  m.def("describe", &Describe);
  DefineCodecs(m);
  DefineGpus(m);
  DefineMpi(m);
  DefinePlanner(m);
  DefineRecords(m);
  DefineSchedules(m);
  DefineUcx(m);
  DefineXlaCollectives(m);
  m.def("shutdown", [] {
    if (Engine::Find() != nullptr) Engine::Find()->Shutdown();
  }, py::call_guard<py::gil_scoped_release>());
}

}  // namespace jaxccomp
