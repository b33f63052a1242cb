// Ranks of a call site meet through the engine before they use NCCL, and decide together: each tells
// all others what it has, and all draw the same conclusion.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "nccl/driver.h"
#include "nccl/library.h"

namespace jaxccomp::nccl {

// What a rank tells the others, as it is.
struct Row {
  int32_t version = 0;        // of its NCCL; 0: it has none
  int32_t host = 0;           // a number for its host
  Gpu gpu{};
  UniqueId id;                // the first rank's, in the second round
  std::array<char, 232> why{};   // when something is wrong

  void Blame(const Status& status);
};

// Every rank's row, by rank. Waits for the ranks to come; the engine ends that at its deadline.
Result<std::vector<Row>> Exchange(Engine& engine, CallSite& site, const Engine::Place& place,
                                  int64_t device, int64_t run_id, Row row);
// The same between the two ranks of a message: this one's row, and that of member `peer`, in the order
// of their numbers.
Result<std::vector<Row>> ExchangeWith(Engine& engine, const std::string& communicator, int member,
                                      int peer, int64_t device, Row row);

// What all ranks conclude from the first round; `names` are theirs. The error is the same everywhere.
Status Judge(const std::vector<Row>& rows, const std::vector<std::string>& names);

// How many ranks use the GPU that most of them share.
int MostOnOneGpu(const std::vector<Row>& rows);

// Makes NCCL accept ranks that share a GPU, by the variables of its environment that the program has
// not set itself. NCCL reads them when it first makes a communicator.
void LetRanksShareGpus(int version, int rank);

}  // namespace jaxccomp::nccl
