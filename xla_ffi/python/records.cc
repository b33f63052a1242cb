#include "python/records.h"

#include <chrono>
#include <string>

#include "engine/engine.h"
#include "nccl/backend.h"

namespace py = pybind11;

namespace jaxccomp {
namespace {

py::dict GetStats() {
  const Stats stats = Engine::Find() != nullptr ? Engine::Find()->GetStats() : Stats{};
  nccl::Backend* const nccl = nccl::Backend::Find();
  const nccl::AllCounts queued = nccl != nullptr ? nccl->counts() : nccl::AllCounts{};
  py::dict all;
  for (const CollectiveInfo& info : CollectiveTable()) {
    const CollectiveStats& s = stats[static_cast<size_t>(info.id)];
    const nccl::Counts& by_nccl = queued[static_cast<size_t>(info.id)];
    if (s.calls == 0 && by_nccl.calls == 0) continue;
    py::dict row;
    row["calls"] = s.calls;
    row["value_bytes"] = s.value_bytes;
    row["sent_bytes"] = s.sent_bytes;
    row["remote_bytes"] = s.remote_bytes;
    row["ipc_bytes"] = s.ipc_bytes;
    row["cuda_aware_sent_bytes"] = s.cuda_aware_sent_bytes;
    row["cuda_aware_received_bytes"] = s.cuda_aware_received_bytes;
    row["peak_bytes"] = s.peak_bytes;
    row["bound_bytes"] = s.bound_bytes;
    row["seconds"] = s.seconds;
    row["nccl_calls"] = by_nccl.calls;
    row["nccl_bytes"] = by_nccl.value_bytes;
    all[py::str(std::string(info.name))] = row;
  }
  return all;
}

py::dict RowOf(const CallRow& r, const char* backend) {
  py::dict row;
  row["operation"] = r.text.empty() ? "others" : std::string(Info(r.collective).name);
  row["reduce_op"] = r.reduction;
  row["root"] = r.root;
  row["operands"] = r.shapes;
  row["where"] = r.where;
  row["communicator"] = r.communicator;
  row["ranks"] = r.ranks;
  row["codec"] = r.codec;
  row["asked_algorithm"] = r.asked_algorithm;
  row["algorithm"] = std::string(r.algorithm);
  row["backend"] = backend;
  row["calls"] = r.counts.calls;
  row["failed"] = r.counts.failed;
  row["operand_bytes"] = r.counts.sum.operand_bytes;
  row["sent_bytes"] = r.counts.sum.sent_bytes;
  row["remote_bytes"] = r.counts.sum.remote_bytes;
  row["received_bytes"] = r.counts.sum.received_bytes;
  row["seconds"] = r.counts.sum.seconds;
  row["wait_seconds"] = r.counts.sum.wait_seconds;
  row["median_seconds"] = r.counts.MedianSeconds();
  row["most_seconds"] = r.counts.most_seconds;
  return row;
}

// The rows of call sites, and when their counting has begun, in seconds of UNIX; 0 where nothing has.
py::tuple GetCallLog() {
  py::list rows;
  double since = 0;
  const auto add = [&](const CallLog::Snapshot& log, auto backend_of) {
    for (const CallRow& row : log.rows) {
      if (!Info(row.collective).internal) rows.append(RowOf(row, backend_of(row)));
    }
  };
  if (Engine* const engine = Engine::Find()) {
    const CallLog::Snapshot log = engine->GetCallLog();
    since = std::chrono::duration<double>(log.since.time_since_epoch()).count();
    add(log, [](const CallRow& row) { return row.mpi ? "mpi" : "native"; });
  }
  if (nccl::Backend* const nccl = nccl::Backend::Find()) {
    add(nccl->GetCallLog(), [](const CallRow&) { return "nccl"; });
  }
  return py::make_tuple(rows, since);
}

// (begin_ns, end_ns, operation, collective, kind, peer, lane, bytes, message) of every task.
py::list StopTrace() {
  py::list rows;
  for (const TraceEvent& e : Engine::Get().StopTrace()) {
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
    if (Engine::Find() != nullptr) Engine::Find()->ResetStats();
    if (nccl::Backend::Find() != nullptr) nccl::Backend::Find()->ResetCounts();
  });
  // Nanoseconds of CLOCK_MONOTONIC when the recording starts.
  m.def("start_trace", [] {
    return std::chrono::nanoseconds(Engine::Get().StartTrace().time_since_epoch()).count();
  });
  m.def("stop_trace", &StopTrace);
}

}  // namespace jaxccomp
