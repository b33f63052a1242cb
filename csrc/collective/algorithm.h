// The table of collectives and the table of their algorithms.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "collective/schedule.h"
#include "common/status.h"

namespace jaxccomp {

enum class Collective : uint8_t {
  kBcast, kAllreduce, kReduce, kAllgather, kGather, kScatter, kReduceScatter, kAlltoall,
  kAllgatherv, kGatherv, kScatterv, kReduceScatterv, kAlltoallv, kRaggedAlltoall,
  kScan, kExscan, kBarrier, kSend, kRecv, kSendrecv, kPermute,
};
inline constexpr int kCollectiveCount = 21;

// The number of blocks of an operation's input or output: one, or one per rank.
enum class Blocks : uint8_t { kOne, kPerRank };

struct CollectiveInfo {
  Collective id;
  std::string_view name;
  Blocks input, output;
  bool reduces;
  bool rooted;
};
std::span<const CollectiveInfo> CollectiveTable();
const CollectiveInfo& Info(Collective c);
Result<Collective> ParseCollective(std::string_view name);

struct RegisteredSchedules;   // registered.h

// The arguments of a schedule. Sizes are bytes of a block (schedule.h).
struct Problem {
  int rank = 0;
  int ranks = 1;
  int root = 0;
  int64_t block_bytes = 0;       // uniform collectives: size of each block
  int64_t chunk_bytes = 512 << 10;
  bool encoded = false;            // there is a codec: values are encoded before they are sent; false:
                                 // no encode or decode tasks
  bool bounded = false;          // encoded: the codec's range is smaller than the values' range. Partial sums may
                                 // exceed it even if the result does not, so they are sent uncoded
  bool exact = false;            // encoded: the codec is lossless: the encoder keeps its own values instead
                                 // of decoding
  bool feedback = false;         // kAllreduce, kReduceScatter: each compression error is stored in Residual of
                                 // exactly one rank; a rank does not write ranges of Residual for which
                                 // it encodes nothing
  bool reverse = false;          // kScan, kExscan: from the last rank to the first
  bool wide = false;             // the dtype is a half type: sums must be merged at once
  int partitions = 0;            // parameter_server: the number of parts of a block; 0: the
                                 // algorithm's default
  int rotation = 0;              // parameter_server: the rank that serves the first part
  std::vector<int> hosts = {};   // by rank: an id of its host; empty: one rank per host
  bool multi_slot = false;       // the executor sends and receives grouped messages (schedule.h)
  // v-variants: bytes from rank s to rank d at [s * ranks + d] (alltoallv); for allgatherv,
  // gatherv, scatterv and reduce_scatterv the size of rank i's block at [i].
  std::vector<int64_t> counts = {};
  // kPermute: (source, destination) pairs. kSendrecv: {(rank, dest), (source, rank)}; -1: no rank.
  std::vector<std::pair<int, int>> pairs = {};
  // Instead of pairs, for kSend, kRecv, and kSendrecv between different programs: the message sent
  // (block_bytes, encoded) and the message received are independent.
  struct Messages {
    int destination = -1;         // below 0: no rank
    int source = -1;
    int64_t received_bytes = 0;
    bool received_encoded = false;
    int64_t status_begin = -1;    // where the output block stores source and tag of the received message;
    int64_t status_bytes = 0;     // status_begin below 0: nowhere
  };
  std::optional<Messages> messages = {};
  // kRaggedAlltoall, per peer in bytes of the one input and output block.
  std::vector<int64_t> send_offsets = {}, send_sizes = {}, recv_offsets = {}, recv_sizes = {};
  // The custom schedules of this problem; null: the algorithm builds one.
  const RegisteredSchedules* registered = nullptr;
};

// The tag of the message from the rank to itself with the status of a receive.
inline constexpr uint32_t kStatusMessage = 1 << 16;

struct Algorithm {
  Collective collective;
  std::string_view name;         // "chain", "ring", ...
  std::string_view description;  // one line: steps and bytes sent per rank
  Schedule (*build)(const Problem&);
  // For reductions: ranks send partial reductions to ranks that reduce them further. Half types would be
  // rounded at each hop, so callers convert them to float32. False: all values of an element are merged at once.
  bool sends_partial = false;
};

std::span<const Algorithm> AlgorithmTable();

// The algorithm of this name, or for "auto" the default for this problem (a static rule of size and
// ranks, collective/defaults.h). For unknown names kInvalidArgument, whose text lists the collective's
// algorithms.
Result<const Algorithm*> SelectAlgorithm(Collective c, std::string_view name,
                                         const Problem& problem);

}  // namespace jaxccomp
