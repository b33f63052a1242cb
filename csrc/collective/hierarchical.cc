// Allreduce in two levels: within each host to its leader (the lowest rank there), between the
// leaders as in the two-shot algorithm, and back. Only what goes between hosts is encoded.
//
// Output may be the operand's memory: a task that writes a range of Output comes after all
// tasks of its rank that read that range of Input.

#include <algorithm>
#include <utility>
#include <vector>

#include "collective/algorithms.h"
#include "collective/flow.h"
#include "collective/patterns/hosts.h"

namespace jaxccomp {
namespace {

// Tags of one lane: between leaders, and between a leader and the others of its host, by part.
struct Tags {
  int hosts;
  size_t lane;
  uint32_t Part() const { return Tag(0, lane); }
  uint32_t Merged() const { return Tag(1, lane); }
  uint32_t Up(int part) const { return Tag(2 + part, lane); }
  uint32_t Down(int part) const { return Tag(2 + hosts + part, lane); }
};

// slots[i]: this lane's chunk of part i, which the leader of host i merges; maybe empty.
void MemberLane(Flow& flow, int leader, const std::vector<Slot>& slots, Tags tags) {
  for (int part = 0; part < tags.hosts; ++part) {
    if (slots[part].bytes() == 0) continue;
    const TaskId sent = flow.SendRaw(leader, tags.Up(part), In(slots[part]));
    flow.RecvRaw(leader, tags.Down(part), slots[part], {sent});
  }
}

// The sum over a host.
struct HostSum {
  Slot slot;
  TaskId ready = kNoTask;
  TaskId reader = kNoTask;   // of the leader's Input
};

HostSum SumHost(Flow& flow, const std::vector<int>& members, Slot slot, uint32_t tag) {
  if (members.size() == 1) return {In(slot)};
  std::vector<Slot> sources = {In(slot)};
  std::vector<TaskId> deps;
  for (size_t i = 1; i < members.size(); ++i) {
    sources.push_back(flow.Scratch(slot));
    deps.push_back(flow.RecvRaw(members[i], tag, sources.back()));
  }
  const Slot sum = flow.Scratch(slot);
  const TaskId merge = flow.Merge(sum, std::move(sources), /*final=*/false, std::move(deps));
  return {sum, merge, merge};
}

void LeaderLane(Flow& flow, const Hosts& hosts, const std::vector<Slot>& slots, Tags tags) {
  const std::vector<int>& members = hosts.members[hosts.own];
  std::vector<HostSum> sums(tags.hosts);
  for (int part = 0; part < tags.hosts; ++part) {
    if (slots[part].bytes() == 0) continue;
    sums[part] = SumHost(flow, members, slots[part], tags.Up(part));
  }
  for (int step = 1; step < tags.hosts; ++step) {
    const int part = Shifted(hosts.own, step, tags.hosts);
    if (slots[part].bytes() == 0) continue;
    HostSum& sum = sums[part];
    const Parcel parcel = flow.Pack(sum.slot, sum.ready);
    const TaskId send = flow.Send(hosts.leaders[part], tags.Part(), parcel);
    if (sum.reader == kNoTask) sum.reader = flow.ReaderOf(parcel, send);
  }
  std::vector<TaskId> placed(tags.hosts, kNoTask);
  const Slot own = slots[hosts.own];
  if (own.bytes() > 0) {
    const HostSum& sum = sums[hosts.own];
    const TaskId merge =
        flow.MergeFromAll(hosts.leaders, sum.slot, own, tags.Part(), sum.ready);
    const Parcel merged = flow.Pack(own, merge, /*final=*/true);
    for (int step = 1; step < tags.hosts; ++step) {
      flow.Send(hosts.leaders[Shifted(hosts.own, step, tags.hosts)], tags.Merged(), merged);
    }
    placed[hosts.own] = flow.Place(own, merged);
  }
  for (int step = 1; step < tags.hosts; ++step) {
    const int part = Shifted(hosts.own, -step, tags.hosts);
    if (slots[part].bytes() == 0) continue;
    const Parcel result =
        flow.Land(hosts.leaders[part], tags.Merged(), slots[part], sums[part].reader);
    placed[part] = flow.Place(slots[part], result, {sums[part].reader});
  }
  for (int part = 0; part < tags.hosts; ++part) {
    if (slots[part].bytes() == 0) continue;
    for (size_t i = 1; i < members.size(); ++i) {
      flow.SendRaw(members[i], tags.Down(part), slots[part], {placed[part]});
    }
  }
}

// How many times smaller than usual chunks are, so that what a leader holds in a lane is half of what
// it may hold: two chunks for each rank that it talks to. That is of each part the chunks of its
// host's other ranks and their sum, and of its own part what the other hosts send; with a codec also
// what it encodes for them, their results and its own. The same on all ranks.
int PiecesFor(const Hosts& hosts, bool coded) {
  size_t largest = 1;
  for (const auto& members : hosts.members) largest = std::max(largest, members.size());
  const int members = static_cast<int>(largest), others = hosts.count() - 1;
  const int within = members > 1 ? members * hosts.count() : 0;
  const int between = coded ? 3 * others + 1 : others;
  const int room = 2 * std::max(members - 1 + others, 1);
  return std::max(2, (within + between + room - 1) / room);
}

}  // namespace

// With h hosts, 2 (h - 1) / h blocks leave each host. Within a host a block goes to the leader and
// back for every other rank. The merge order is that of hosts, and of ranks in each.
Schedule AllreduceHierarchical(const Problem& problem) {
  if (problem.ranks == 1) return CopyOnly(problem);
  const Hosts hosts(problem.hosts, problem.rank, problem.ranks);
  const int leader = hosts.leaders[hosts.own];
  Flow flow(problem, PiecesFor(hosts, problem.coded));
  const Slot out = OutputSlot(0, 0, problem.block_bytes);
  ChunkSlots parts(hosts.count());
  for (int i = 0; i < hosts.count(); ++i) parts[i] = flow.PartChunks(out, i, hosts.count());
  for (size_t k = 0; k < LanesOf(parts); ++k) {
    flow.Lane(k);
    const Tags tags{hosts.count(), k};
    if (flow.rank == leader) {
      LeaderLane(flow, hosts, LaneOf(parts, k), tags);
    } else {
      MemberLane(flow, leader, LaneOf(parts, k), tags);
    }
  }
  return std::move(flow).Finish();
}

}  // namespace jaxccomp
