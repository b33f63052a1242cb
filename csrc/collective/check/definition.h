// What each collective is, in symbols, and whether the schedules of all ranks do it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "collective/algorithm.h"
#include "collective/check/oracle.h"
#include "collective/check/symbols.h"

namespace jaxccomp {

// In which order a result's operands may have been merged. Reductions are of commuting operations.
enum class MergeOrder : uint8_t { kAny, kAsListed, kRotated };

// What an Output block of a rank must hold: whose operands, and which of their blocks. Empty: nothing is
// written.
struct Expected {
  std::vector<int> leaves = {};
  int from_block = 0;
  bool exact = false;      // the operand itself, never through a codec
  bool same = false;       // identical on all ranks
  MergeOrder order = MergeOrder::kAny;
};

// Of the collectives whose blocks depend on sizes alone: all but send, recv, sendrecv and ragged_alltoall.
Expected Expect(Collective collective, const Problem& problem, int rank, int block);

// Bytes of the Input or Output blocks of a rank.
std::vector<int64_t> BlockSizes(Collective collective, const Problem& problem, int rank, bool output);

// The world of schedules, by rank, that work on those blocks.
World WorldOf(Collective collective, const Problem& problem, std::vector<Schedule> schedules,
              bool shared_memory);

// Whether Input and Output of a call may lie at one place.
bool MayShareMemory(Collective collective);

// By rank and block.
using Definition = std::function<Expected(int rank, int block)>;

// What is wrong, in words; empty where nothing is: tasks that are not ordered, that cannot run, or whose
// results are not what is expected. `outcome`, where it is given, gets what was found by running them.
std::string FindMistake(Collective collective, const Problem& problem, const World& world,
                        const Definition& definition, Outcome* outcome = nullptr);

// Temporary memory beyond what is granted (memory_limits.h), in words; empty where there is none. Chunks
// count as 4 KiB at least: smaller ones cannot be cut into as many pieces as algorithms want.
std::string FindExcess(const Problem& problem, const Outcome& outcome);

}  // namespace jaxccomp
