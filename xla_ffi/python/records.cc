#include "python/records.h"

#include <chrono>
#include <string>

#include "engine/engine.h"
#include "engine/measurements.h"

namespace py = pybind11;

namespace jaxccomp {
namespace {

py::dict GetStats() {
  const Stats stats = Engine::Find() != nullptr ? Engine::Find()->measurements().GetStats() : Stats{};
  py::dict all;
  for (const CollectiveInfo& info : CollectiveTable()) {
    const CollectiveStats& s = stats[static_cast<size_t>(info.id)];
    if (s.calls == 0) continue;
    py::dict row;
    row["calls"] = s.calls;
    row["value_bytes"] = s.value_bytes;
    row["sent_bytes"] = s.sent_bytes;
    row["remote_bytes"] = s.remote_bytes;
    row["peak_bytes"] = s.peak_bytes;
    row["bound_bytes"] = s.bound_bytes;
    row["seconds"] = s.seconds;
    all[py::str(std::string(info.name))] = row;
  }
  return all;
}

py::dict RowOf(const CallRow& r) {
  py::dict row;
  row["operation"] = r.text.empty() ? "others" : std::string(Info(r.collective).name);
  row["reduce_op"] = r.reduction;
  row["root"] = r.root;
  row["operands"] = r.shapes;
  row["where"] = r.where;
  row["communicator"] = r.communicator;
  row["ranks"] = r.ranks;
  row["codec"] = r.codec;
  row["asked_algorithm"] = r.requested_algorithm;
  row["algorithm"] = std::string(r.algorithm);
  row["backend"] = r.mpi ? "mpi" : "native";
  row["calls"] = r.counts.calls;
  row["failed"] = r.counts.failed;
  row["operand_bytes"] = r.counts.sum.operand_bytes;
  row["sent_bytes"] = r.counts.sum.sent_bytes;
  row["remote_bytes"] = r.counts.sum.remote_bytes;
  row["received_bytes"] = r.counts.sum.received_bytes;
  row["seconds"] = r.counts.sum.seconds;
  row["wait_seconds"] = r.counts.sum.wait_seconds;
  row["median_seconds"] = r.counts.MedianSeconds();
  row["max_seconds"] = r.counts.max_seconds;
  return row;
}

// Returns (rows of call sites, Unix time at which counting began, or 0 without an engine).
py::tuple GetCallLog() {
  py::list rows;
  double since = 0;
  if (Engine* const engine = Engine::Find()) {
    const CallLog::Snapshot log = engine->measurements().GetCallLog();
    since = std::chrono::duration<double>(log.since.time_since_epoch()).count();
    for (const CallRow& row : log.rows) rows.append(RowOf(row));
  }
  return py::make_tuple(rows, since);
}

// Returns (begin_ns, end_ns, operation, collective, kind, peer, lane, bytes, message) of every recorded task.
py::list StopTrace() {
  py::list rows;
  for (const TraceEvent& e : Engine::Get().measurements().StopTrace()) {
    rows.append(py::make_tuple(e.begin_ns, e.end_ns, e.operation,
                               std::string(Info(e.collective).name), std::string(Name(e.kind)),
                               e.peer, e.lane, e.bytes, e.message));
  }
  return rows;
}

}  // namespace

void DefineRecords(py::module_& m) {
  m.def("stats", &GetStats);
  m.def("call_log", &GetCallLog);
  m.def("reset_stats", [] {
    if (Engine::Find() != nullptr) Engine::Find()->measurements().ResetStats();
  });
  // Returns the start of the recording in nanoseconds of CLOCK_MONOTONIC.
  m.def("start_trace", [] {
    return std::chrono::nanoseconds(Engine::Get().measurements().StartTrace().time_since_epoch()).count();
  });
  m.def("stop_trace", &StopTrace);
}

}  // namespace jaxccomp
