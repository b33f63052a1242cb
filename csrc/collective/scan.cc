// Prefix reductions, in rank order or reversed. Each rank gets the reduction of the ranks before it, with its
// own values (scan) or without (exscan). Earlier ranks are the left operands of merges. The first rank of an
// exscan writes no Output. Merges are never `final`, because their results are also sent.
//
// Output may be the operand's memory: a task that writes a range of Output depends on all tasks of its
// rank that read this range of Input.

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

// A chain, chunk by chunk: a rank merges the received values with its own, and sends the result to the
// next. ranks - 1 + chunks steps, one block sent per rank.
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

// Hillis and Steele: at step s every rank sends the sum of the last 2^s places to the place 2^s later.
// log2(ranks) steps and blocks sent per rank. Adds one chunk.
void DoublingLane(Flow& flow, const Line& line, bool inclusive, Slot out, size_t lane) {
  const Slot in = In(out);
  Slot sum = in;            // the sum of this rank's values and the places received so far
  TaskId ready = kNoTask;
  std::vector<Message> heard;      // received sums, by step, each of places farther away
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
    // An exscan's result excludes the rank's own values: it needs this sum only for sending.
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
