#include "python/schedules.h"

#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "collective/algorithm_spec.h"
#include "collective/carry.h"
#include "collective/defaults.h"
#include "python/check.h"

namespace py = pybind11;

namespace jaxccomp {
namespace {

// (space, block, begin, end).
py::tuple SlotRow(const Slot& slot) {
  return py::make_tuple(std::string(Name(slot.space)), slot.block, slot.begin, slot.end);
}

py::dict TaskRow(const Schedule& schedule, const Task& task) {
  py::dict row;
  row["kind"] = std::string(Name(task.kind));
  row["lane"] = task.lane;
  row["peer"] = task.peer;
  row["tag"] = task.tag;
  row["final"] = task.final;
  row["dst"] = SlotRow(task.dst);
  py::list sources;
  for (const Slot& slot : schedule.SourcesOf(task)) sources.append(SlotRow(slot));
  row["sources"] = sources;
  const auto deps = schedule.DepsOf(task);
  row["deps"] = std::vector<TaskId>(deps.begin(), deps.end());
  return row;
}

py::dict MakeSchedule(const std::string& collective, const std::string& algorithm, int rank,
                      int ranks, int root, int64_t block_bytes, int64_t chunk_bytes, bool coded,
                      bool lossless, bool feedback, std::vector<int> hosts, std::vector<int> gpus,
                      bool gpus_share_memory) {
  Result<Collective> parsed = ParseCollective(collective);
  Check(parsed.status());
  Result<AlgorithmSpec> spec = ParseAlgorithm(*parsed, algorithm);
  Check(spec.status());
  Problem problem;
  problem.rank = rank;
  problem.ranks = ranks;
  problem.root = root;
  problem.block_bytes = block_bytes;
  problem.chunk_bytes = chunk_bytes;
  problem.coded = coded;
  problem.exact = lossless;
  problem.feedback = feedback;
  problem.hosts = std::move(hosts);
  problem.gpus = std::move(gpus);
  problem.gpus_share_memory = gpus_share_memory;
  spec->ApplyTo(&problem);
  Result<const Algorithm*> found = SelectAlgorithm(*parsed, spec->name, problem);
  Check(found.status());
  Schedule schedule = (*found)->build(problem);
  if (feedback) schedule = CarryResiduals(schedule);
  py::dict row;
  row["algorithm"] = std::string((*found)->name);
  row["text"] = schedule.ToString();
  py::list tasks;
  for (const Task& task : schedule.tasks) tasks.append(TaskRow(schedule, task));
  row["tasks"] = tasks;
  py::list scratch;
  for (const Slot& slot : schedule.scratch) scratch.append(py::make_tuple(slot.begin, slot.end));
  row["scratch"] = scratch;
  return row;
}

// The static rule's algorithm of a call between hosts, as far as it does not depend on GPUs.
std::string DefaultName(const std::string& collective, std::vector<int> hosts, int64_t block_bytes,
                        bool coded, bool wide) {
  Result<Collective> parsed = ParseCollective(collective);
  Check(parsed.status());
  Problem problem;
  problem.ranks = static_cast<int>(hosts.size());
  problem.hosts = std::move(hosts);
  problem.block_bytes = block_bytes;
  problem.coded = coded;
  problem.wide = wide;
  problem.multi_slot = true;
  return std::string(DefaultAlgorithm(*parsed, problem));
}

}  // namespace

void DefineSchedules(py::module_& m) {
  m.def("make_schedule", &MakeSchedule, py::arg("collective"), py::arg("algorithm"),
        py::arg("rank"), py::arg("ranks"), py::arg("root"), py::arg("block_bytes"),
        py::arg("chunk_bytes"), py::arg("coded"), py::arg("lossless"), py::arg("feedback"),
        py::arg("hosts"), py::arg("gpus"), py::arg("gpus_share_memory"));
  m.def("default_algorithm", &DefaultName, py::arg("collective"), py::arg("hosts"),
        py::arg("block_bytes"), py::arg("coded"), py::arg("wide"));
}

}  // namespace jaxccomp
