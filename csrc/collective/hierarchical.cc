// Hierarchical allreduce: each host reduces to its root, the roots exchange as in the two-shot algorithm,
// and each root sends the result to its host. Only messages between roots are encoded.
//
// There is one leader per group, instead of a part for each member: the bytes per link and within shared
// memory are the same, but in fewer and larger messages, computations and encodings, and only leaders
// communicate with other groups. Chunks are in different lanes, so that members, leaders and links work
// concurrently.
//
// Output may be the operand's memory: a task that writes a range of Output depends on all tasks of its
// rank that read this range of Input.

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "collective/algorithms.h"
#include "collective/flow.h"
#include "collective/patterns/forest.h"

namespace jaxccomp {
namespace {

// The tags of one lane: between roots; and by part, between a rank and its parent.
struct Tags {
  int roots;
  size_t lane;
  uint32_t Part() const { return Tag(0, lane); }
  uint32_t Merged() const { return Tag(1, lane); }
  uint32_t Up(int part) const { return Tag(2 + part, lane); }
  uint32_t Down(int part) const { return Tag(2 + roots + part, lane); }
};

// A rank's own values and its children's, in merge order.
struct Contributions {
  std::vector<Slot> sources;
  std::vector<TaskId> deps;
};

Contributions Collect(Flow& flow, const std::vector<int>& children, Slot slot, uint32_t tag) {
  Contributions all{{In(slot)}, {}};
  for (int child : children) {
    all.sources.push_back(flow.Scratch(slot));
    all.deps.push_back(flow.RecvRaw(child, tag, all.sources.back()));
  }
  return all;
}

// The sum of the contributions.
struct Sum {
  Slot slot;
  TaskId ready = kNoTask;
  TaskId reader = kNoTask;   // of this rank's Input
};

// Whether root number `root` sends sums of several ranks to the other roots, not only its own values.
bool SumsBelow(const Forest& forest, int root) { return !forest.children[forest.roots[root]].empty(); }

Sum SumUp(Flow& flow, const std::vector<int>& children, Slot slot, uint32_t tag) {
  if (children.empty()) return {In(slot)};
  Contributions all = Collect(flow, children, slot, tag);
  const Slot sum = flow.Scratch(slot);
  const TaskId merge =
      flow.Merge(sum, std::move(all.sources), /*final=*/false, std::move(all.deps));
  return {sum, merge, merge};
}

void SendDown(Flow& flow, const std::vector<int>& children, Slot slot, uint32_t tag, TaskId placed) {
  for (auto child = children.rbegin(); child != children.rend(); ++child) {
    flow.SendRaw(*child, tag, slot, {placed});
  }
}

// slots[i]: the lane's chunk of part i, which root i merges; may be empty.
void MemberLane(Flow& flow, const Forest& forest, const std::vector<Slot>& slots, Tags tags) {
  const int parent = forest.parents[flow.rank];
  const std::vector<int>& children = forest.children[flow.rank];
  for (int part = 0; part < tags.roots; ++part) {
    const Slot slot = slots[part];
    if (slot.bytes() == 0) continue;
    const Sum sum = SumUp(flow, children, slot, tags.Up(part));
    const TaskId sent = flow.SendRaw(parent, tags.Up(part), sum.slot, {sum.ready});
    const TaskId reader = sum.reader == kNoTask ? sent : sum.reader;
    const TaskId placed = flow.RecvRaw(parent, tags.Down(part), slot, {reader});
    SendDown(flow, children, slot, tags.Down(part), placed);
  }
}

// The root's own part: merged at once from its children and the other roots, and sent to the other roots.
TaskId MergeOwnPart(Flow& flow, const Forest& forest, int place, Slot own, Tags tags) {
  Contributions below = Collect(flow, forest.children[flow.rank], own, tags.Up(place));
  std::vector<Message> theirs(static_cast<size_t>(tags.roots));
  std::vector<TaskId> deps = std::move(below.deps);
  for (int step = 1; step < tags.roots; ++step) {
    const int from = Shifted(place, -step, tags.roots);
    theirs[from] = SumsBelow(forest, from) ? flow.RecvPartial(forest.roots[from], tags.Part(), own)
                                           : flow.RecvTemp(forest.roots[from], tags.Part(), own);
    deps.push_back(theirs[from].ready);
  }
  std::vector<Slot> sources;
  for (int root = 0; root < tags.roots; ++root) {
    if (root != place) sources.push_back(theirs[root].slot);
    else sources.insert(sources.end(), below.sources.begin(), below.sources.end());
  }
  const TaskId merge = flow.Merge(own, std::move(sources), /*final=*/true, std::move(deps));
  if (tags.roots == 1) return merge;
  const Message merged = flow.Pack(own, merge, /*final=*/true);
  for (int step = 1; step < tags.roots; ++step) {
    flow.Send(forest.roots[Shifted(place, step, tags.roots)], tags.Merged(), merged);
  }
  return flow.Unpack(own, merged);
}

void RootLane(Flow& flow, const Forest& forest, const std::vector<Slot>& slots, Tags tags) {
  const std::vector<int>& children = forest.children[flow.rank];
  const auto place = static_cast<int>(
      std::find(forest.roots.begin(), forest.roots.end(), flow.rank) - forest.roots.begin());
  std::vector<TaskId> readers(static_cast<size_t>(tags.roots), kNoTask);   // of Input, by part
  for (int step = 1; step < tags.roots; ++step) {
    const int part = Shifted(place, step, tags.roots);
    if (slots[part].bytes() == 0) continue;
    const Sum sum = SumUp(flow, children, slots[part], tags.Up(part));
    const Message message = SumsBelow(forest, place) ? flow.PackPartial(sum.slot, sum.ready)
                                                     : flow.Pack(sum.slot, sum.ready);
    const TaskId send = flow.Send(forest.roots[part], tags.Part(), message);
    readers[part] = sum.reader == kNoTask ? flow.ReaderOf(message, send) : sum.reader;
  }
  if (slots[place].bytes() > 0) {
    const TaskId placed = MergeOwnPart(flow, forest, place, slots[place], tags);
    SendDown(flow, children, slots[place], tags.Down(place), placed);
  }
  for (int step = 1; step < tags.roots; ++step) {
    const int part = Shifted(place, -step, tags.roots);
    const Slot slot = slots[part];
    if (slot.bytes() == 0) continue;
    const Message result = flow.RecvInto(forest.roots[part], tags.Merged(), slot, readers[part]);
    const TaskId placed = flow.Unpack(slot, result, {readers[part]});
    SendDown(flow, children, slot, tags.Down(part), placed);
  }
}

// Returns the divisor of the chunk size with which a lane on any rank holds at most half of its memory bound, which is
// two chunks per peer. A lane holds, for each part, the children's chunks and their sum; at a root also the other
// roots' chunks of its own part; with a codec also the encoded chunks for them, their results and its own. All ranks
// compute the same divisor.
int PiecesFor(const Forest& forest, bool encoded) {
  const auto roots = static_cast<int>(forest.roots.size());
  const int between = encoded && roots > 1 ? 3 * (roots - 1) + 1 : roots - 1;
  int pieces = 2;
  for (size_t rank = 0; rank < forest.parents.size(); ++rank) {
    const bool is_root = forest.parents[rank] < 0;
    const auto below = static_cast<int>(forest.children[rank].size());
    const int held = (below > 0 ? (below + 1) * roots : 0) + (is_root ? between : 0);
    const int room = 2 * std::max(below + (is_root ? roots - 1 : 1), 1);
    pieces = std::max(pieces, (held + room - 1) / room);
  }
  return pieces;
}

}  // namespace

// With r roots, each root sends 2 (r - 1) / r blocks to other roots. Every other rank sends a block up and
// receives one. The merge order: roots in order, each followed by its children.
Schedule AllreduceHierarchical(const Problem& problem) {
  if (problem.ranks == 1) return CopyOnly(problem);
  const Forest forest(problem.hosts, problem.ranks);
  const auto roots = static_cast<int>(forest.roots.size());
  Flow flow(problem, PiecesFor(forest, problem.encoded));
  const Slot out = OutputSlot(0, 0, problem.block_bytes);
  ChunkSlots parts(forest.roots.size());
  for (int i = 0; i < roots; ++i) parts[i] = flow.PartChunks(out, i, roots);
  for (size_t k = 0; k < LanesOf(parts); ++k) {
    flow.Lane(k);
    const Tags tags{roots, k};
    const std::vector<Slot> slots = LaneOf(parts, k);
    forest.parents[flow.rank] < 0 ? RootLane(flow, forest, slots, tags)
                                  : MemberLane(flow, forest, slots, tags);
  }
  return std::move(flow).Finish();
}

}  // namespace jaxccomp
