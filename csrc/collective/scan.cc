// Prefix reductions. The ranks stand in a line, in order of rank or, reversed, from the last to
// the first; each gets the reduction of all before it, with its own (scan) or without
// (exscan). Those before stand left in every merge. The first of an exscan writes no Output.
// Merges are never `final`: their results are passed on.
//
// Output may be the operand's memory: a task that writes a range of Output comes after all
// tasks of its rank that read that range of Input.

#include <utility>
#include <vector>

#include "collective/algorithms.h"
#include "collective/flow.h"

namespace jaxccomp {
namespace {

struct Line {
  const int ranks;
  const bool reverse;
  const int place;

  explicit Line(const Problem& problem)
      : ranks(problem.ranks), reverse(problem.reverse), place(RankAt(problem.rank)) {}
  int RankAt(int at) const { return reverse ? ranks - 1 - at : at; }
};

// Down the line, chunk by chunk: merge what comes with the own values, pass it on. ranks - 1 +
// chunks steps, one block sent per rank.
Schedule Chain(const Problem& problem, bool inclusive) {
  Flow flow(OfPartialSums(problem));
  const Line line(problem);
  const bool first = line.place == 0, last = line.place + 1 == line.ranks;
  const int previous = line.RankAt(line.place - 1), next = line.RankAt(line.place + 1);
  const std::vector<Slot> chunks = flow.Chunks(OutputSlot(0, 0, problem.block_bytes));
  for (size_t k = 0; k < chunks.size(); ++k) {
    flow.Lane(k);
    const Slot out = chunks[k], in = In(out);
    if (first) {
      if (!last) flow.Send(next, Tag(0, k), flow.Pack(in));
      if (inclusive) flow.Copy(out, in);
    } else if (inclusive) {
      const Message before = flow.RecvTemp(previous, Tag(0, k), out);
      const TaskId merge = flow.Merge(out, {before.slot, in}, /*final=*/false, {before.ready});
      if (!last) flow.Send(next, Tag(0, k), flow.Pack(out, merge));
    } else if (last) {
      flow.Unpack(out, flow.RecvInto(previous, Tag(0, k), out));
    } else {
      const Message before = flow.RecvTemp(previous, Tag(0, k), out);
      const Slot sum = flow.Scratch(out);
      const TaskId merge =
          flow.Merge(sum, {before.slot, in}, /*final=*/false, {before.ready});
      flow.Send(next, Tag(0, k), flow.Pack(sum, merge));
      flow.Unpack(out, before, {merge});
    }
  }
  return std::move(flow).Finish();
}

// Hillis and Steele: at step s everybody sends the sum of the last 2^s places to the place 2^s
// after. log2(ranks) steps, as many blocks sent per rank.
// This is one chunk of it.
void DoublingLane(Flow& flow, const Line& line, bool inclusive, Slot out, size_t lane) {
  const Slot in = In(out);
  Slot sum = in;            // of the places that this rank has heard of, and its own
  TaskId ready = kNoTask;
  std::vector<Message> heard;      // by step: from ever farther places
  std::vector<TaskId> readers;    // of Input
  for (int distance = 1, step = 0; distance < line.ranks; distance *= 2, ++step) {
    TaskId reader = kNoTask;
    if (line.place + distance < line.ranks) {
      const Message mine = flow.Pack(sum, ready);
      const TaskId send = flow.Send(line.RankAt(line.place + distance), Tag(step, lane), mine);
      reader = flow.ReaderOf(mine, send);
      if (sum == in) readers.push_back(reader);
    }
    if (line.place < distance) continue;
    heard.push_back(flow.RecvTemp(line.RankAt(line.place - distance), Tag(step, lane), out));
    // Without its own values in the result, a rank needs the sum only to send it.
    if (!inclusive && line.place + 2 * distance >= line.ranks) continue;
    const Slot dst = inclusive ? out : sum == in ? flow.Scratch(out) : sum;
    ready = flow.Merge(dst, {heard.back().slot, sum}, /*final=*/false,
                       {heard.back().ready, ready, reader});
    if (sum == in) readers.push_back(ready);
    sum = dst;
  }
  if (inclusive) {
    if (heard.empty()) flow.Copy(out, in);
  } else if (heard.size() == 1) {
    flow.Unpack(out, heard[0], std::move(readers));
  } else if (heard.size() > 1) {
    std::vector<Slot> sources;
    for (auto message = heard.rbegin(); message != heard.rend(); ++message) {
      sources.push_back(message->slot);
      readers.push_back(message->ready);
    }
    flow.Merge(out, std::move(sources), /*final=*/false, std::move(readers));
  }
}

Schedule RecursiveDoubling(const Problem& problem, bool inclusive) {
  Flow flow(OfPartialSums(problem));
  const std::vector<Slot> chunks = flow.Chunks(OutputSlot(0, 0, problem.block_bytes));
  for (size_t k = 0; k < chunks.size(); ++k) {
    flow.Lane(k);
    DoublingLane(flow, Line(problem), inclusive, chunks[k], k);
  }
  return std::move(flow).Finish();
}

}  // namespace

Schedule ScanChain(const Problem& problem) { return Chain(problem, true); }
Schedule ExscanChain(const Problem& problem) { return Chain(problem, false); }
Schedule ScanRecursiveDoubling(const Problem& problem) {
  return RecursiveDoubling(problem, true);
}
Schedule ExscanRecursiveDoubling(const Problem& problem) {
  return RecursiveDoubling(problem, false);
}

}  // namespace jaxccomp
