// The definition of each collective on symbols, and the check of all ranks' schedules against it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "collective/algorithm.h"
#include "collective/check/oracle.h"
#include "collective/check/symbols.h"

namespace jaxccomp {

// The allowed merge orders of a result's operands. Reductions are commutative.
enum class MergeOrder : uint8_t { kAny, kAsListed, kRotated };

// The expected contents of a rank's Output block: the ranks of its operands, and their block. No leaves: the
// block must not be written.
struct Expected {
  std::vector<int> leaves = {};
  int from_block = 0;
  bool exact = false;      // the operand itself, not decoded
  bool same = false;       // identical on all ranks
  MergeOrder order = MergeOrder::kAny;
};

// For all collectives except send, recv, sendrecv and ragged_alltoall, whose blocks do not depend on sizes alone.
Expected Expect(Collective collective, const Problem& problem, int rank, int block);

// Bytes of the Input or Output blocks of a rank.
std::vector<int64_t> BlockSizes(Collective collective, const Problem& problem, int rank, bool output);

// The world of these schedules (by rank) with the collective's blocks.
World WorldOf(Collective collective, const Problem& problem, std::vector<Schedule> schedules,
              bool shared_memory);

// Whether Input and Output of a call may share memory.
bool MayShareMemory(Collective collective);

// By rank and block.
using Definition = std::function<Expected(int rank, int block)>;

// Describes the first mistake: unordered tasks, tasks that cannot run, or unexpected results; "" if there is none.
// `outcome`, if given, receives the outcome of the run.
std::string FindMistake(Collective collective, const Problem& problem, const World& world,
                        const Definition& definition, Outcome* outcome = nullptr);

// Describes temporary memory above the limits (memory_limits.h); "" if there is none. Chunks count as at least
// 4 KiB: smaller ones cannot be cut into the pieces that algorithms need.
std::string FindExcess(const Problem& problem, const Outcome& outcome);

}  // namespace jaxccomp
