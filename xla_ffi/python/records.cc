#include "python/records.h"

#include <chrono>
#include <string>

#include "engine/engine.h"
#include "engine/measurements.h"
#include "handlers/traced_calls.h"

namespace py = pybind11;

namespace jaxccomp {
namespace {

py::dict GetStats() {
  const Stats stats = Engine::Find() != nullptr ? Engine::Find()->measurements().GetStats() : Stats{};
  const Stats traced = TracedCalls::Get().GetStats();
  py::dict all;
  for (const CollectiveInfo& info : CollectiveTable()) {
    const CollectiveStats& s = stats[static_cast<size_t>(info.id)];
    const CollectiveStats& t = traced[static_cast<size_t>(info.id)];
    if (s.calls + t.calls == 0) continue;
    py::dict row;
    row["calls"] = s.calls + t.calls;
    row["value_bytes"] = s.value_bytes + t.value_bytes;
    row["sent_bytes"] = s.sent_bytes;
    row["remote_bytes"] = s.remote_bytes;
    row["raw_bytes"] = s.raw_bytes;
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
  row["backend"] = std::string(r.backend);
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

// Returns (rows of call sites, Unix time at which counting began).
py::tuple GetCallLog() {
  py::list rows;
  CallLog::Snapshot log = TracedCalls::Get().GetCallLog();
  for (const CallRow& row : log.rows) rows.append(RowOf(row));
  if (Engine* const engine = Engine::Find()) {
    log = engine->measurements().GetCallLog();
    for (const CallRow& row : log.rows) rows.append(RowOf(row));
  }
  const double since = std::chrono::duration<double>(log.since.time_since_epoch()).count();
  return py::make_tuple(rows, since);
}

// Returns (begin_ns, end_ns, operation, collective, kind, peer, lane, bytes, message, payload_bytes, codec, where) of
// every recorded task.
py::list StopTrace() {
  py::list rows;
  const Recording recording = Engine::Get().measurements().StopTrace();
  for (const TraceEvent& e : recording.events) {
    const CallRow& call = *recording.calls[static_cast<size_t>(e.operation)];
    rows.append(py::make_tuple(e.begin_ns, e.end_ns, e.operation,
                               std::string(Info(e.collective).name), std::string(Name(e.kind)),
                               e.peer, e.lane, e.bytes, e.message, e.payload_bytes, call.codec, call.where));
  }
  return rows;
}

}  // namespace

void DefineRecords(py::module_& m) {
  m.def("stats", &GetStats);
  m.def("call_log", &GetCallLog);
  m.def("reset_stats", [] {
    TracedCalls::Get().Reset();
    if (Engine::Find() != nullptr) Engine::Find()->measurements().ResetStats();
  });
  // `before_ns`: of CLOCK_MONOTONIC.
  m.def("open_operations", [](int64_t before_ns) {
    if (Engine::Find() == nullptr) return int64_t{0};
    return Engine::Find()->measurements().CountOpen(Trace::Clock::time_point(std::chrono::nanoseconds(before_ns)));
  }, py::arg("before_ns"));
  m.def("flight", [] { return py::bytes(Engine::Get().measurements().GetFlight()); });
  // Returns the start of the recording in nanoseconds of CLOCK_MONOTONIC.
  m.def("start_trace", [] {
    return std::chrono::nanoseconds(Engine::Get().measurements().StartTrace().time_since_epoch()).count();
  });
  m.def("stop_trace", &StopTrace);
}

}  // namespace jaxccomp
