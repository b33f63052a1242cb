#include "python/schedules.h"

#include <pybind11/stl.h>

#include <array>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "collective/algorithm_spec.h"
#include "collective/residual_in.h"
#include "collective/check/check.h"
#include "collective/defaults.h"
#include "collective/registered.h"
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

// Returns a problem with the arguments that all bindings below have in common.
Problem ProblemOf(int ranks, int root, int64_t block_bytes, int64_t chunk_bytes, bool encoded, bool feedback) {
  Problem problem;
  problem.ranks = ranks;
  problem.root = root;
  problem.block_bytes = block_bytes;
  problem.chunk_bytes = chunk_bytes;
  problem.encoded = encoded;
  problem.feedback = feedback;
  return problem;
}

py::dict MakeSchedule(const std::string& collective, const std::string& algorithm, int rank,
                      int ranks, int root, int64_t block_bytes, int64_t chunk_bytes, bool encoded,
                      bool lossless, bool feedback, std::vector<int> hosts) {
  Result<Collective> parsed = ParseCollective(collective);
  Check(parsed.status());
  Result<AlgorithmSpec> spec = ParseAlgorithm(*parsed, algorithm);
  Check(spec.status());
  Problem problem = ProblemOf(ranks, root, block_bytes, chunk_bytes, encoded, feedback);
  problem.rank = rank;
  problem.exact = lossless;
  problem.hosts = std::move(hosts);
  spec->ApplyTo(&problem);
  Result<const Algorithm*> found = SelectAlgorithm(*parsed, *spec, problem);
  Check(found.status());
  Schedule schedule = (*found)->build(problem);
  if (feedback) schedule = AddResidualsIn(schedule);
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

// The format of jaxccomp/schedules/_builder.py: (space, block, begin, end).
using SlotNumbers = std::array<int64_t, 4>;
// (kind, final, lane, peer, tag, destination, sources, dependencies).
using TaskNumbers = std::tuple<int, bool, int32_t, int32_t, uint32_t, SlotNumbers, std::vector<SlotNumbers>,
                               std::vector<TaskId>>;
// (tasks, ranges of the scratch blocks, ranges of the code blocks).
using ScheduleNumbers = std::tuple<std::vector<TaskNumbers>, std::vector<std::pair<int64_t, int64_t>>,
                                   std::vector<std::pair<int64_t, int64_t>>>;

Slot SlotOf(const SlotNumbers& numbers) {
  return {static_cast<Space>(numbers[0]), static_cast<int32_t>(numbers[1]), numbers[2], numbers[3]};
}

std::vector<Slot> BlocksOf(Space space, const std::vector<std::pair<int64_t, int64_t>>& ranges) {
  std::vector<Slot> blocks;
  for (const auto& [begin, end] : ranges) {
    blocks.push_back({space, static_cast<int32_t>(blocks.size()), begin, end});
  }
  return blocks;
}

Schedule ScheduleOf(const ScheduleNumbers& numbers) {
  Schedule schedule;
  schedule.scratch = BlocksOf(Space::kScratch, std::get<1>(numbers));
  schedule.code = BlocksOf(Space::kCode, std::get<2>(numbers));
  for (const auto& [kind, final, lane, peer, tag, dst, sources, deps] : std::get<0>(numbers)) {
    schedule.tasks.push_back({.kind = static_cast<TaskKind>(kind),
                              .final = final,
                              .lane = lane,
                              .peer = peer,
                              .tag = tag,
                              .dst = SlotOf(dst),
                              .first_source = static_cast<int32_t>(schedule.sources.size()),
                              .source_count = static_cast<int32_t>(sources.size()),
                              .first_dep = static_cast<int32_t>(schedule.deps.size()),
                              .dep_count = static_cast<int32_t>(deps.size())});
    for (const SlotNumbers& slot : sources) schedule.sources.push_back(SlotOf(slot));
    schedule.deps.insert(schedule.deps.end(), deps.begin(), deps.end());
  }
  return schedule;
}

// Checks the schedules of all ranks, and registers them under a key.
void RegisterSchedules(const std::string& collective, const std::string& name,
                       const std::string& key, int root, int64_t block_bytes,
                       int64_t chunk_bytes, bool encoded, bool feedback, bool reverse,
                       const std::vector<ScheduleNumbers>& by_rank) {
  Result<Collective> parsed = ParseCollective(collective);
  Check(parsed.status());
  Problem problem =
      ProblemOf(static_cast<int>(by_rank.size()), root, block_bytes, chunk_bytes, encoded, feedback);
  problem.reverse = reverse;
  std::vector<Schedule> schedules;
  for (const ScheduleNumbers& numbers : by_rank) schedules.push_back(ScheduleOf(numbers));
  Check([&] {
    py::gil_scoped_release released;
    return CheckSchedules(*parsed, problem, schedules);
  }());
  KeepRegistered(key, name, *parsed, std::move(problem), std::move(schedules));
}

// Returns the default algorithm of a call without GPUs, by the static rules (collective/defaults.h).
std::string DefaultName(const std::string& collective, std::vector<int> hosts, int64_t block_bytes,
                        bool encoded, bool wide) {
  Result<Collective> parsed = ParseCollective(collective);
  Check(parsed.status());
  Problem problem;
  problem.ranks = static_cast<int>(hosts.size());
  problem.hosts = std::move(hosts);
  problem.block_bytes = block_bytes;
  problem.encoded = encoded;
  problem.wide = wide;
  problem.multi_slot = true;
  return std::string(DefaultAlgorithm(*parsed, problem));
}

}  // namespace

void DefineSchedules(py::module_& m) {
  m.def("make_schedule", &MakeSchedule, py::arg("collective"), py::arg("algorithm"),
        py::arg("rank"), py::arg("ranks"), py::arg("root"), py::arg("block_bytes"),
        py::arg("chunk_bytes"), py::arg("encoded"), py::arg("lossless"), py::arg("feedback"),
        py::arg("hosts"));
  m.def("register_schedules", &RegisterSchedules, py::arg("collective"), py::arg("name"), py::arg("key"),
        py::arg("root"), py::arg("block_bytes"), py::arg("chunk_bytes"), py::arg("encoded"),
        py::arg("feedback"), py::arg("reverse"), py::arg("by_rank"));
  m.def("default_algorithm", &DefaultName, py::arg("collective"), py::arg("hosts"),
        py::arg("block_bytes"), py::arg("encoded"), py::arg("wide"));
}

}  // namespace jaxccomp
