// A schedule that is ready to run: each slot is resolved to parts of tensors, and each task lists its dependents. A
// call site has one plan per endpoint and Call::part, made on the first run.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "codec/codec.h"
#include "collective/algorithm.h"
#include "collective/memory_limits.h"
#include "collective/schedule.h"
#include "common/options.h"
#include "execution/layout.h"
#include "execution/sizes.h"
#include "matching/call.h"
#include "matching/communicator.h"
#include "matching/program.h"

namespace jaxccomp {

// Contiguous bytes of a slot. `index` is the tensor for kInput, kResidualIn and kOutput (residuals are the last half of
// the results), and the scratch block for kScratch.
struct Part {
  Space space;
  int32_t index;
  DType dtype;
  int64_t offset;
  int64_t bytes;
  // Identify the values, in the same way on all ranks and in all spaces: the tensor, and the offset in bytes from the
  // start of the tensor's rows in the block.
  int32_t tensor = 0;
  int64_t offset_in_block = 0;
};

// A range of Plan::parts.
struct PartRange {
  int32_t first = 0;
  int32_t count = 0;
};

struct PlannedTask {
  TaskKind kind;
  bool final;
  int32_t lane;
  int32_t peer;
  uint32_t tag;
  int64_t bytes;                  // size of the values that are moved or computed, before encoding
  int32_t dst_code = -1;          // kEncode, or kRecv of encoded bytes
  int32_t src_code = -1;          // kDecode, or kSend of encoded bytes
  PartRange dst;
  std::vector<PartRange> sources; // one per source; encoded sources have empty ranges, see codes
  std::vector<int32_t> codes;     // per source: its code block, or -1
  std::vector<int32_t> touched_scratch;
  std::vector<int32_t> touched_codes;
  std::vector<TaskId> dependents;
  int32_t dep_count = 0;
  // Size of the contiguous copy if a message must be gathered from, or scattered to, several parts; 0: one part.
  int64_t staged_bytes = 0;
};

// Where the references are. first_result: the index in Call::refs of the first result's reference. The others: which
// block of a reference belongs to an operand, and which to a result.
struct ReferencePlaces {
  size_t first_result = 0;
  int64_t operand_block = 0, result_block = 0;
};

struct Plan {
  std::vector<PlannedTask> tasks;
  std::vector<Part> parts;
  std::vector<int64_t> scratch_bytes;
  std::vector<int32_t> scratch_uses;   // number of tasks that touch the block
  std::vector<int32_t> code_uses;
  std::vector<int64_t> code_bytes;     // maximum encoded bytes of each block
  std::vector<int32_t> lane_tasks;     // number of tasks by lane
  int32_t lane_series = 1;             // Schedule::lane_series
  MemoryLimits limits;
  std::unordered_map<uint64_t, TaskId> receives;   // by (peer, tag)
  std::vector<Part> unwritten;         // parts of results that no task writes; they are filled (FillUnwritten)
  ReferencePlaces references;
  bool fills_identity = false;         // with the identity of the reduction (exscan), not with zeros
  std::shared_ptr<const Codec> codec;
  ReduceOp reduce_op = ReduceOp::kSum;
  bool reverse = false;                // Problem::reverse
  int64_t divisor = 1;
  bool starts_from_operands = false;   // OpSpec::StartsFromOperands
  bool by_library = false;             // a library of collectives runs the operation (library_path.h)
  BlockRows library_rows;              // for a v-variant with by_library
  bool streams = false;                // copies into results bypass the caches
  int64_t total_bytes = 0;
  const Algorithm* algorithm = nullptr;

  static uint64_t ReceiveKey(int peer, uint32_t tag) {
    return static_cast<uint64_t>(static_cast<uint32_t>(peer)) << 32 | tag;
  }
};

// Checks the tensors against the operation, and makes its plan for the endpoint's member.
Result<std::shared_ptr<const Plan>> MakePlan(const CallSite& site, const Endpoint& endpoint,
                                             const Call& call, const Options& options);

}  // namespace jaxccomp
