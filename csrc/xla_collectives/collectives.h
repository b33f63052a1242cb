// Runs XLA's own collectives on the engine. XLA's partitioner adds them under `jit` with shardings, and calls MPI for
// them on CPUs (abi.h).
//
// XLA makes a communicator for each group of devices and each of its local devices, by MPI_Comm_split with the first
// device of the group as colour and the rank in the group as key. These two numbers do not tell the group. So Python,
// which reads the groups from each compiled program, makes XLA ask for one group at a time (_primitives/xla_collectives.py):
// MakeGroup, a program with one allreduce over the group on this process's devices, EndGroup. In between, operations
// on the group's communicators return at once. Every other split fails.
//
// XLA calls the operations on one communicator one after the other, and in the same order on all ranks; those on
// several communicators at the same time, from several threads. So the engine matches them by program order, in an order
// of their own, which the program's other operations do not use.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "common/status.h"
#include "xla_collectives/abi.h"

namespace jaxccomp {

// The functions for the library.
const XlaTable& XlaFunctions();

// The next splits are of the group of these devices, by rank. A group of one device may also be split later: XLA runs no
// collective over it that could be run here. Returns an error if another group is being made.
Status MakeXlaGroup(std::vector<int64_t> devices);
// Ends it. Returns the ranks for which XLA has made a communicator.
std::vector<int> EndXlaGroup();
// A rule of the policy: the codec of an operation.
struct XlaRule {
  std::string operation;                 // "allreduce", "reduce_scatter", "allgather", "permute", "alltoall", or "*"
  std::optional<DType> dtype;            // null: of every type
  int64_t min_bytes = 0;                 // of the operand; of alltoall: of a block
  std::string codec;
  std::string algorithm = "auto";
  std::vector<int64_t> devices = {};     // of one group, by rank; empty: of every group
  int64_t max_bytes = INT64_MAX;
};
// Sets the rules, the same on all ranks; the first one that fits an operation counts, and without one it is sent raw.
// Lossy codecs are for sums. Call it before the first operation.
void SetXlaPolicy(std::vector<XlaRule> rules);
// Adds a rule before all others. Call it before the first operation that it fits.
void AddXlaRule(XlaRule rule);
// `call` gets the text of each error of an operation.
void OnXlaError(void (*call)(const std::string& text));
// Whether XLA has a communicator here. Then XLA's threads call operations, not only the program's.
bool HasXlaGroups();

}  // namespace jaxccomp
