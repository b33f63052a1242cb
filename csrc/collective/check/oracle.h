// Runs the schedules of all ranks of an operation without memory or network, on symbols (symbols.h).
//
// Tasks run in random order as their dependencies allow. A message passes when both ends are ready, and ends
// both: the strictest transport there is, so what does not deadlock here deadlocks nowhere. Tasks wait for
// temporary memory as they do in the executor (memory_limits.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "collective/check/symbols.h"
#include "collective/schedule.h"

namespace jaxccomp {

struct World {
  std::vector<Schedule> schedules;                // by rank
  std::vector<std::vector<int64_t>> input_bytes;  // by rank and block
  std::vector<std::vector<int64_t>> output_bytes;
  int64_t unit = kBlockAlign;              // where slots may begin and end
  // Where values keep their address: all addresses at which a slot begins or ends, in order, so that a cell
  // is what lies between two of them. Empty: values may move, and a cell is `unit` bytes.
  std::vector<int64_t> cuts = {};
  int64_t chunk_bytes = int64_t{1} << 40;  // what memory is bounded by (memory_limits.h)
  bool shared_memory = false;  // Input block 0 and Output block 0 are the same
  bool exact = false;          // a code stands for the very values that were encoded
  bool carries = false;        // there are residuals of the call before, which lie where Residual does

  // The number of cells before an address.
  int64_t CellsBefore(int64_t address) const;
};

// Fills in World::cuts.
void CutAtSlots(World* world);

struct Outcome {
  std::string error;                          // empty: all tasks ran
  std::vector<std::vector<Block>> output;     // by rank and block
  // By rank, block and place: the values whose encoding's loss Residual holds.
  std::vector<std::vector<std::vector<std::vector<int>>>> lost;
  std::vector<char> finished;                 // by rank: whether all its tasks ran
  int64_t encoded_bytes = 0;                  // over all ranks
  int64_t decoded_bytes = 0;                  // likewise, of decode tasks
  std::vector<int64_t> peak_bytes;            // by rank, of Scratch and Code: from the start of the
                                              // task that fills a block to the end of its last reader
  std::vector<int64_t> bound_bytes;           // by rank: what peak_bytes must not exceed
};

Outcome RunSymbols(const World& world, Expressions& expressions, uint32_t seed);

}  // namespace jaxccomp
