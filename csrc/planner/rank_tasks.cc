#include "planner/rank_tasks.h"

#include <algorithm>
#include <cmath>

#include "common/buffer_pool.h"

namespace jaxccomp {
namespace {

double BytesOfAll(std::span<const Slot> slots) {
  int64_t bytes = 0;
  for (const Slot& slot : slots) bytes += slot.bytes();
  return static_cast<double>(bytes);
}

double SecondsOf(const Task& task, std::span<const Slot> sources, const Cluster& cluster) {
  const auto bytes = static_cast<double>(task.dst.bytes());
  switch (task.kind) {
    case TaskKind::kSend:
    case TaskKind::kRecv:
    case TaskKind::kNumber:
    case TaskKind::kLibrary: return 0;
    case TaskKind::kCopy: return cluster.task_seconds + bytes / cluster.copy_rate;
    case TaskKind::kEncode: return cluster.task_seconds + bytes / cluster.codec.encode_rate;
    case TaskKind::kDecode: return cluster.task_seconds + bytes / cluster.codec.decode_rate;
    case TaskKind::kResidual:
      return cluster.task_seconds + bytes / cluster.codec.decode_rate + bytes / cluster.merge_rate;
    case TaskKind::kMerge: break;
  }
  // Count first: the sum must not depend on the order of the sources, which differs between ranks.
  const auto codes = static_cast<double>(std::count_if(
      sources.begin(), sources.end(), [](const Slot& slot) { return slot.space == Space::kCode; }));
  const double values = static_cast<double>(sources.size()) - codes;
  const double decoding = codes > 0 ? codes * bytes / cluster.codec.merge_rate : 0;
  return cluster.task_seconds + decoding + values * bytes / cluster.merge_rate;
}

}  // namespace

RankTasks PriceTasks(const Schedule& schedule, const Cluster& cluster, int64_t chunk_bytes) {
  RankTasks made;
  const size_t count = schedule.tasks.size();
  const auto scratch_count = static_cast<int32_t>(schedule.scratch.size());
  made.tasks.reserve(count + 1);
  made.lane_tasks.resize(static_cast<size_t>(schedule.LaneCount()));
  made.lane_series = schedule.lane_series;
  made.early_bytes = LimitsOf(schedule, chunk_bytes).early_bytes;
  for (const Slot& slot : schedule.scratch) {
    made.block_bytes.push_back(BufferPool::TakenBytes(slot.bytes()));
  }
  made.block_bytes.resize(made.block_bytes.size() + schedule.code.size());
  made.block_uses.resize(made.block_bytes.size());
  std::vector<int32_t> dependent_counts(count + 1);
  for (TaskId dep : schedule.deps) ++dependent_counts[dep];

  const auto code_bytes = [&](int64_t values, double per_byte) {
    return static_cast<int64_t>(std::ceil(static_cast<double>(values) * per_byte));
  };
  int32_t first_dependent = 0;
  for (size_t i = 0; i < count; ++i) {
    const Task& task = schedule.tasks[i];
    const auto sources = schedule.SourcesOf(task);
    PricedTask& to = made.tasks.emplace_back();
    to.kind = task.kind;
    to.lane = task.lane;
    to.peer = task.peer;
    to.tag = task.tag;
    to.dep_count = task.dep_count;
    to.first_dependent = first_dependent;
    first_dependent += dependent_counts[i];
    to.first_block = static_cast<int32_t>(made.blocks.size());
    to.seconds = SecondsOf(task, sources, cluster);
    ++made.lane_tasks[task.lane];

    const auto touch = [&](const Slot& slot) {
      if (slot.space != Space::kScratch && slot.space != Space::kCode) return;
      const int32_t block = slot.block + (slot.space == Space::kCode ? scratch_count : 0);
      const auto touched = made.blocks.begin() + to.first_block;
      if (std::find(touched, made.blocks.end(), block) != made.blocks.end()) return;
      made.blocks.push_back(block);
      ++made.block_uses[block];
    };
    for (const Slot& slot : sources) touch(slot);
    if (task.kind != TaskKind::kSend) touch(task.dst);
    if (task.kind == TaskKind::kSend || task.kind == TaskKind::kRecv) {
      const bool sent = task.kind == TaskKind::kSend || !sources.empty();
      const Slot& first = sent ? sources[0] : task.dst;
      const auto values = sent ? static_cast<int64_t>(BytesOfAll(sources)) : task.dst.bytes();
      to.message_bytes =
          first.space == Space::kCode ? code_bytes(values, 1 / cluster.codec.ratio) : values;
    }
    if (task.kind != TaskKind::kSend && task.dst.space == Space::kCode) {
      const int64_t held = task.kind == TaskKind::kRecv
                               ? to.message_bytes
                               : code_bytes(task.dst.bytes(), cluster.codec.max_code_bytes);
      made.block_bytes[scratch_count + task.dst.block] = BufferPool::TakenBytes(held);
    }
  }
  made.tasks.push_back({.kind = TaskKind::kCopy,
                        .first_dependent = first_dependent,
                        .first_block = static_cast<int32_t>(made.blocks.size())});

  made.dependents.resize(static_cast<size_t>(first_dependent));
  std::vector<int32_t> next(count);
  for (size_t i = 0; i < count; ++i) next[i] = made.tasks[i].first_dependent;
  for (size_t i = 0; i < count; ++i) {
    for (TaskId dep : schedule.DepsOf(schedule.tasks[i])) {
      made.dependents[next[dep]++] = static_cast<TaskId>(i);
    }
  }
  return made;
}

}  // namespace jaxccomp
