#include "collective/check/hazards.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace jaxccomp {

std::string FindHazard(const Schedule& schedule, bool shared_memory) {
  const size_t count = schedule.tasks.size();
  const size_t words = (count + 63) / 64;
  std::vector<uint64_t> before(count * words, 0);
  struct Access { Slot slot; TaskId task; bool write; };
  std::map<std::pair<int, int>, std::vector<Access>> accesses;
  for (size_t id = 0; id < count; ++id) {
    const Task& task = schedule.tasks[id];
    for (TaskId dep : schedule.DepsOf(task)) {
      if (dep < 0 || dep >= static_cast<TaskId>(id)) {
        return "task " + schedule.ToString(static_cast<TaskId>(id)) + ": depends on a later task";
      }
      for (size_t w = 0; w < words; ++w) before[id * words + w] |= before[dep * words + w];
      before[id * words + dep / 64] |= uint64_t{1} << (dep % 64);
    }
    const auto sources = schedule.SourcesOf(task);
    const auto touch = [&](Slot slot, bool write) {
      if (slot.bytes() == 0) return;
      if (shared_memory && slot.space == Space::kOutput && slot.block == 0) {
        slot.space = Space::kInput;
      }
      if (slot.space == Space::kResidualIn) slot.space = Space::kResidual;
      accesses[{static_cast<int>(slot.space), slot.block}].push_back(
          {slot, static_cast<TaskId>(id), write});
    };
    if (shared_memory && task.kind == TaskKind::kCopy && task.dst.block == 0 &&
        sources[0] == Slot{Space::kInput, 0, task.dst.begin, task.dst.end}) {
      continue;
    }
    for (const Slot& slot : sources) touch(slot, task.kind == TaskKind::kRecv);
    if (task.kind != TaskKind::kSend) touch(task.dst, true);
  }
  for (auto& [block, list] : accesses) {
    std::ranges::sort(list, {}, [](const Access& access) { return access.slot.begin; });
    for (size_t i = 0; i < list.size(); ++i) {
      const Access& a = list[i];
      for (size_t j = i + 1; j < list.size() && list[j].slot.begin < a.slot.end; ++j) {
        const Access& b = list[j];
        if (a.task == b.task || !(a.write || b.write)) continue;
        const auto [first, second] = std::minmax(a.task, b.task);
        if (before[second * words + first / 64] >> (first % 64) & 1) continue;
        return "task " + schedule.ToString(second) + ": is not ordered after task " +
               schedule.ToString(first) + ", though one writes what the other touches";
      }
    }
  }
  return "";
}

}  // namespace jaxccomp
