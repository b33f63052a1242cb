// Barrier, and the operations given by (source, destination) pairs.

#include <algorithm>
#include <utility>
#include <vector>

#include "collective/algorithms.h"
#include "collective/flow.h"

namespace jaxccomp {

// Dissemination: at step s, having heard from the rank 2^(s-1) before, tell the rank 2^s after.
// log2(ranks) steps of empty messages.
Schedule BarrierDissemination(const Problem& problem) {
  ScheduleBuilder builder;
  std::vector<TaskId> heard;
  for (int distance = 1, step = 0; distance < problem.ranks; distance *= 2, ++step) {
    builder.Send(Shifted(problem.rank, distance, problem.ranks), Tag(step, 0),
                 InputSlot(0, 0, 0), heard);
    heard.push_back(builder.Recv(Shifted(problem.rank, -distance, problem.ranks), Tag(step, 0),
                                 OutputSlot(0, 0, 0)));
  }
  return std::move(builder).Build();
}

// Each pair's block goes straight from its source to its destination; -1 is nobody. A rank's
// own pair is a copy. Everything is posted at once, so no order of ranks can deadlock; Output
// must therefore not be the operand's memory.
Schedule PairsDirect(const Problem& problem) {
  Flow flow(problem);
  const std::vector<Slot> chunks = flow.Chunks(OutputSlot(0, 0, problem.block_bytes));
  std::vector<std::pair<int, int>> pairs;  // those of this rank
  for (const auto& pair : problem.pairs) {
    const auto [source, destination] = pair;
    if (source < 0 || destination < 0) continue;
    if (source != flow.rank && destination != flow.rank) continue;
    if (std::find(pairs.begin(), pairs.end(), pair) == pairs.end()) pairs.push_back(pair);
  }
  for (size_t k = 0; k < chunks.size(); ++k) {
    flow.Lane(k);
    Parcel mine;  // packed at the first destination
    for (const auto& [source, destination] : pairs) {
      if (source == destination) {
        flow.Copy(chunks[k], In(chunks[k]));
      } else if (source == flow.rank) {
        if (mine.slot.bytes() == 0) mine = flow.Pack(In(chunks[k]));
        flow.Send(destination, Tag(0, k), mine);
      } else {
        flow.Place(chunks[k], flow.Land(source, Tag(0, k), chunks[k]));
      }
    }
  }
  return std::move(flow).Finish();
}

}  // namespace jaxccomp
