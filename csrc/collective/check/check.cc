#include "collective/check/check.h"

#include <algorithm>
#include <span>
#include <string>

#include "collective/residual_in.h"
#include "collective/check/definition.h"

namespace jaxccomp {
namespace {

// Memory limits: the check keeps a bit per pair of tasks, and several bytes per cell.
constexpr size_t kMaxTasks = 1 << 15;
constexpr size_t kMaxCells = 1 << 26;

// Checks a task by itself. Returns the mistake, or "".
std::string WrongShape(const Problem& problem, const Schedule& schedule, const Task& task) {
  const std::span<const Slot> sources = schedule.SourcesOf(task);
  const bool codes = task.kind == TaskKind::kEncode || task.kind == TaskKind::kDecode;
  const bool transfer = task.kind == TaskKind::kSend || task.kind == TaskKind::kRecv;
  if (codes && !problem.encoded) return "there is no codec";
  if (task.kind == TaskKind::kResidual && !problem.feedback) return "there is no error feedback";
  if (task.lane < 0 || task.lane >= static_cast<int64_t>(schedule.tasks.size())) {
    return "lanes are numbered from 0 to " + std::to_string(schedule.tasks.size() - 1) + " here";
  }
  if (task.kind != TaskKind::kRecv && sources.empty()) return "it reads nothing";
  if ((codes || task.kind == TaskKind::kCopy) && sources.size() != 1) return "it has one source";
  if (task.kind == TaskKind::kResidual && (sources.size() < 2 || sources.size() > 3)) {
    return "it has two sources, or three where it adds to a residual";
  }
  std::vector<Slot> slots(sources.begin(), sources.end());
  if (task.kind != TaskKind::kSend && !(task.kind == TaskKind::kRecv && !sources.empty())) {
    slots.push_back(task.dst);
  }
  if (task.kind != TaskKind::kSend && slots.back().space == Space::kInput) return "writes an operand";
  for (const Slot& slot : slots) {
    if (slot.bytes() <= 0 && !transfer) return "a range is empty";
    if (slot.begin < 0 || slot.bytes() < 0) return "a range ends before it begins";
    if (slot.space == Space::kResidualIn) return "residuals of the call before are added by the engine";
    if (slot.space == Space::kResidual && !problem.feedback) return "there is no error feedback";
    if (slot.space == Space::kCode && !problem.encoded) return "there is no codec";
  }
  return "";
}

std::string WrongShape(const Problem& problem, const Schedule& schedule) {
  if (schedule.tasks.size() > kMaxTasks) {
    return "all tasks: there are " + std::to_string(schedule.tasks.size()) + ", and " +
           std::to_string(kMaxTasks) + " at most can be checked: take larger chunks";
  }
  for (const auto* blocks : {&schedule.scratch, &schedule.code}) {
    for (const Slot& block : *blocks) {
      if (block.begin >= 0 && block.bytes() > 0 && block.end <= problem.block_bytes) continue;
      return "a block of scratch or code stands for the values [" + std::to_string(block.begin) + "," +
             std::to_string(block.end) + "), and there are [0," + std::to_string(problem.block_bytes) + ")";
    }
  }
  for (size_t id = 0; id < schedule.tasks.size(); ++id) {
    const std::string wrong = WrongShape(problem, schedule, schedule.tasks[id]);
    if (!wrong.empty()) return "task " + schedule.ToString(static_cast<TaskId>(id)) + ": " + wrong;
  }
  return "";
}

size_t CellsOf(const World& world) {
  size_t blocks = 0;
  for (const auto* sides : {&world.input_bytes, &world.output_bytes}) {
    for (const auto& bytes : *sides) blocks += bytes.size();
  }
  return blocks * world.cuts.size();
}

Status Wrong(const std::string& what) { return {Code::kInvalidArgument, what}; }

}  // namespace

Status CheckSchedules(Collective collective, const Problem& problem, const std::vector<Schedule>& schedules) {
  for (size_t rank = 0; rank < schedules.size(); ++rank) {
    const std::string wrong = WrongShape(problem, schedules[rank]);
    if (!wrong.empty()) return Wrong("rank " + std::to_string(rank) + ", " + wrong);
  }
  const Definition definition = [&](int rank, int block) { return Expect(collective, problem, rank, block); };
  for (bool shared_memory : {false, true}) {
    if (shared_memory && !MayShareMemory(collective)) continue;
    World world = WorldOf(collective, problem, schedules, shared_memory);
    if (CellsOf(world) > kMaxCells) return Wrong("there are too many ranges to check: take larger chunks");
    for (bool adds_residual : {false, true}) {
      if (adds_residual && !problem.feedback) continue;
      world.adds_residual = adds_residual;
      if (adds_residual) std::ranges::transform(schedules, world.schedules.begin(), AddResidualsIn);
      Outcome outcome;
      std::string mistake = FindMistake(collective, problem, world, definition, &outcome);
      if (mistake.empty()) mistake = FindExcess(problem, outcome);
      if (mistake.empty()) continue;
      if (shared_memory) {
        mistake += ". Results may lie where operands do: this is found with both at one place";
      }
      if (adds_residual) mistake += ". This is found where residuals of the call before are added";
      return Wrong(mistake);
    }
  }
  return Status::Ok();
}

}  // namespace jaxccomp
