// Runs the schedules of all ranks of an operation on symbols (symbols.h), without memory or network.
//
// Tasks run in random order within their dependencies. Messages are synchronous: send and receive complete together
// when both are ready. Every transport buffers at least as much, so a schedule that does not deadlock here does not
// deadlock on any transport. Tasks wait for temporary memory as in the executor (memory_limits.h).
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
  int64_t unit = kBlockAlign;              // alignment of slots
  // If values keep their address: all addresses at which a slot begins or ends, sorted; a cell is the range
  // between two of them. Empty: values may move, and a cell is `unit` bytes.
  std::vector<int64_t> cuts = {};
  int64_t chunk_bytes = int64_t{1} << 40;  // for the memory bound (memory_limits.h)
  bool shared_memory = false;  // Input block 0 and Output block 0 are the same
  bool exact = false;          // the codec is lossless
  bool adds_residual = false;        // the last call's residuals are also operands, in the memory of Residual

  // The number of cells before an address.
  int64_t CellsBefore(int64_t address) const;
};

// Fills in World::cuts.
void CutAtSlots(World* world);

struct Outcome {
  std::string error;                          // empty: all tasks ran
  std::vector<std::vector<Block>> output;     // by rank and block
  // By rank, block and cell of Residual: the values whose compression errors the cell contains.
  std::vector<std::vector<std::vector<std::vector<int>>>> lost;
  std::vector<char> finished;                 // by rank: whether all its tasks ran
  int64_t encoded_bytes = 0;                  // over all ranks
  int64_t decoded_bytes = 0;                  // over all ranks, by decode tasks
  std::vector<int64_t> peak_bytes;            // by rank, of Scratch and Code: from the start of the
                                              // task that fills a block to the end of its last reader
  std::vector<int64_t> bound_bytes;           // by rank: the limit of peak_bytes
};

Outcome RunSymbols(const World& world, Expressions& expressions, uint32_t seed);

}  // namespace jaxccomp
