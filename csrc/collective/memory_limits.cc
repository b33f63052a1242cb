#include "collective/memory_limits.h"

#include <algorithm>
#include <vector>

namespace jaxccomp {

MemoryLimits LimitsOf(const Schedule& schedule, std::span<const int64_t> scratch_bytes,
                      std::span<const int64_t> code_bytes, int64_t chunk_bytes) {
  std::vector<int64_t> lane_bytes(static_cast<size_t>(schedule.LaneCount()), 0);
  std::vector<char> scratch_seen(scratch_bytes.size(), 0), code_seen(code_bytes.size(), 0);
  auto see = [&](const Slot& slot, int32_t lane) {
    const bool scratch = slot.space == Space::kScratch;
    if (!scratch && slot.space != Space::kCode) return;
    char& seen = (scratch ? scratch_seen : code_seen)[static_cast<size_t>(slot.block)];
    if (!seen) lane_bytes[lane] += (scratch ? scratch_bytes : code_bytes)[slot.block];
    seen = 1;
  };
  for (const Task& task : schedule.tasks) {
    see(task.dst, task.lane);
    for (const Slot& slot : schedule.SourcesOf(task)) see(slot, task.lane);
  }
  const int64_t largest = lane_bytes.empty() ? 0 : *std::ranges::max_element(lane_bytes);
  const int64_t bound = 4 * chunk_bytes * std::max(schedule.Peers(), 1);
  return {.bound_bytes = bound, .early_bytes = std::max(bound / 2, bound - largest)};
}

}  // namespace jaxccomp
