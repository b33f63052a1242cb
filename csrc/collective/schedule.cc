#include "collective/schedule.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

namespace jaxccomp {
namespace {

constexpr std::string_view kKindNames[] = {"send", "recv", "copy", "merge", "encode", "decode",
                                          "residual", "number", "library"};
constexpr std::string_view kSpaceNames[] = {"input", "output", "scratch", "code", "residual",
                                           "residual_in"};

void Append(std::string& text, const Slot& slot) {
  text += Name(slot.space);
  text += std::to_string(slot.block);
  text += '[';
  text += std::to_string(slot.begin);
  text += ',';
  text += std::to_string(slot.end);
  text += ')';
}

}  // namespace

std::string_view Name(TaskKind kind) { return kKindNames[static_cast<int>(kind)]; }

std::string_view Name(Space space) { return kSpaceNames[static_cast<int>(space)]; }

int64_t Schedule::SentBytes() const {
  int64_t sent_bytes = 0;
  for (const Task& task : tasks) {
    if (task.kind != TaskKind::kSend) continue;
    for (const Slot& slot : SourcesOf(task)) sent_bytes += slot.bytes();
  }
  return sent_bytes;
}

int32_t Schedule::LaneCount() const {
  int32_t count = 0;
  for (const Task& task : tasks) count = std::max(count, task.lane + 1);
  return count;
}

int Schedule::Peers() const {
  std::set<int> peers;
  for (const Task& task : tasks) {
    if (task.kind == TaskKind::kSend || task.kind == TaskKind::kRecv) peers.insert(task.peer);
  }
  return static_cast<int>(peers.size());
}

std::string Schedule::ToString() const {
  std::string text;
  for (size_t i = 0; i < tasks.size(); ++i) text += ToString(static_cast<TaskId>(i)) + '\n';
  return text;
}

std::string Schedule::ToString(TaskId id) const {
  const Task& task = tasks[static_cast<size_t>(id)];
  std::string text = std::to_string(id);
  text += ' ';
  text += Name(task.kind);
  if (task.final) text += " final";
  const bool grouped_recv = task.kind == TaskKind::kRecv && task.source_count > 0;
  if (task.kind != TaskKind::kSend && !grouped_recv) {
    text += ' ';
    Append(text, task.dst);
  }
  if (task.kind != TaskKind::kRecv) text += task.kind == TaskKind::kSend ? "" : " <-";
  for (const Slot& slot : SourcesOf(task)) {
    text += ' ';
    Append(text, slot);
  }
  if (task.kind == TaskKind::kSend || task.kind == TaskKind::kRecv) {
    text += task.kind == TaskKind::kSend ? " to " : " from ";
    text += std::to_string(task.peer);
    text += " tag ";
    text += std::to_string(task.tag);
  }
  if (task.lane > 0) text += " lane " + std::to_string(task.lane);
  if (task.dep_count > 0) text += " after";
  for (TaskId dep : DepsOf(task)) {
    text += ' ';
    text += std::to_string(dep);
  }
  return text;
}

TaskId ScheduleBuilder::Add(Task task, std::span<const Slot> sources,
                            std::span<const TaskId> deps) {
  task.lane = lane_;
  task.first_source = static_cast<int32_t>(schedule_.sources.size());
  task.source_count = static_cast<int32_t>(sources.size());
  schedule_.sources.insert(schedule_.sources.end(), sources.begin(), sources.end());
  task.first_dep = static_cast<int32_t>(schedule_.deps.size());
  for (TaskId dep : deps) {
    if (dep != kNoTask) schedule_.deps.push_back(dep);
  }
  task.dep_count = static_cast<int32_t>(schedule_.deps.size()) - task.first_dep;
  schedule_.tasks.push_back(task);
  return static_cast<TaskId>(schedule_.tasks.size() - 1);
}

TaskId ScheduleBuilder::Send(int peer, uint32_t tag, Slot src, std::vector<TaskId> deps) {
  return Add({.kind = TaskKind::kSend, .peer = peer, .tag = tag}, {&src, 1}, deps);
}

TaskId ScheduleBuilder::Recv(int peer, uint32_t tag, Slot dst, std::vector<TaskId> deps) {
  return Add({.kind = TaskKind::kRecv, .peer = peer, .tag = tag, .dst = dst}, {}, deps);
}

TaskId ScheduleBuilder::SendGroup(int peer, uint32_t tag, std::vector<Slot> sources,
                                  std::vector<TaskId> deps) {
  return Add({.kind = TaskKind::kSend, .peer = peer, .tag = tag}, sources, deps);
}

TaskId ScheduleBuilder::RecvGroup(int peer, uint32_t tag, std::vector<Slot> destinations,
                                  std::vector<TaskId> deps) {
  return Add({.kind = TaskKind::kRecv, .peer = peer, .tag = tag}, destinations, deps);
}

TaskId ScheduleBuilder::Copy(Slot dst, Slot src, std::vector<TaskId> deps) {
  return Add({.kind = TaskKind::kCopy, .dst = dst}, {&src, 1}, deps);
}

TaskId ScheduleBuilder::Merge(Slot dst, std::vector<Slot> sources, bool final,
                              std::vector<TaskId> deps) {
  return Add({.kind = TaskKind::kMerge, .final = final, .dst = dst}, sources, deps);
}

TaskId ScheduleBuilder::Encode(int whose, uint32_t which, Slot code, Slot src,
                               std::vector<TaskId> deps) {
  return Add({.kind = TaskKind::kEncode, .peer = whose, .tag = which, .dst = code}, {&src, 1},
             deps);
}

TaskId ScheduleBuilder::Decode(Slot dst, Slot code, std::vector<TaskId> deps) {
  return Add({.kind = TaskKind::kDecode, .dst = dst}, {&code, 1}, deps);
}

TaskId ScheduleBuilder::Residual(Slot dst, Slot values, Slot code, bool final, bool more,
                             std::vector<TaskId> deps) {
  const Slot sources[] = {values, code, dst};
  return Add({.kind = TaskKind::kResidual, .final = final, .dst = dst},
             {sources, static_cast<size_t>(more ? 3 : 2)}, deps);
}

Slot ScheduleBuilder::Scratch(int64_t begin, int64_t end) {
  const Slot slot{Space::kScratch, static_cast<int32_t>(schedule_.scratch.size()), begin, end};
  schedule_.scratch.push_back(slot);
  return slot;
}

Slot ScheduleBuilder::Code(int64_t begin, int64_t end) {
  const Slot slot{Space::kCode, static_cast<int32_t>(schedule_.code.size()), begin, end};
  schedule_.code.push_back(slot);
  return slot;
}

Schedule ScheduleBuilder::Build() && { return std::move(schedule_); }

}  // namespace jaxccomp
