// The collectives, their algorithms, and the table that names them.
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

// How many blocks an operation's input and output have: one, or one per rank.
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

// All that a schedule depends on. Sizes are bytes of a block (schedule.h).
struct Problem {
  int rank = 0;
  int ranks = 1;
  int root = 0;
  int64_t block_bytes = 0;       // uniform collectives: size of each block
  int64_t chunk_bytes = 512 << 10;
  bool coded = false;            // a codec stands behind encode and decode: travelling values
                                 // are encoded; false: no encode or decode task at all
  bool bounded = false;          // coded: codes hold a smaller range than values. Partial sums may be
                                 // beyond that range where the result is not, and travel uncoded
  bool exact = false;            // coded: decoding gives the very values that were encoded, so who has
                                 // them takes those
  bool feedback = false;         // kAllreduce, kReduceScatter: Residual gets the compression errors,
                                 // each one's on one rank; ranges that a rank encodes nothing of are
                                 // not written
  bool reverse = false;          // kScan, kExscan: from the last rank to the first
  bool wide = false;             // the dtype is a half type: sums must be merged at once
  int partitions = 0;            // parameter_server: into how many parts a block is cut; 0: a
                                 // sound number
  int rotation = 0;              // parameter_server: which rank serves the first part
  std::vector<int> hosts = {};   // by rank: a number for its host; empty: each has its own
  bool multi_slot = false;       // the executor sends and receives grouped messages (schedule.h)
  // v-variants: bytes from rank s to rank d at [s * ranks + d] (alltoallv); for allgatherv,
  // gatherv, scatterv and reduce_scatterv the size of rank i's block at [i].
  std::vector<int64_t> counts = {};
  // kPermute: (source, destination) pairs. kSendrecv: {(rank, dest), (source, rank)}, -1 for nobody.
  std::vector<std::pair<int, int>> pairs = {};
  // kSend, kRecv, and kSendrecv between programs that differ, in place of pairs: what goes out
  // (block_bytes, coded) and what comes in are two messages that have nothing to do with each other.
  struct Messages {
    int destination = -1;         // below 0: nobody
    int source = -1;
    int64_t received_bytes = 0;
    bool received_coded = false;
    int64_t status_begin = -1;    // in the output block: where it says who sent what came in; below
    int64_t status_bytes = 0;     // 0: nowhere
  };
  std::optional<Messages> messages = {};
  // kRaggedAlltoall, per peer in bytes of the one input and output block.
  std::vector<int64_t> send_offsets = {}, send_sizes = {}, recv_offsets = {}, recv_sizes = {};
  // Those that the program has made for this problem; null: the algorithm makes its own.
  const RegisteredSchedules* registered = nullptr;
};

// The tag of the message, from the rank to itself, that brings a receive its status.
inline constexpr uint32_t kStatusMessage = 1 << 16;

struct Algorithm {
  Collective collective;
  std::string_view name;         // "chain", "ring", ...
  std::string_view description;  // one line: steps and bytes sent per rank
  Schedule (*build)(const Problem&);
  // Of reductions: ranks send reductions of some ranks' values to ranks that reduce them further. Values of
  // half types would be rounded at each hop, so callers pass them in as float32. Others merge all values
  // of an element at once.
  bool sends_partial = false;
};

std::span<const Algorithm> AlgorithmTable();

// The algorithm of that name, or for "auto" the default for this problem (a static rule of
// size and ranks, collective/defaults.h). Unknown names: kInvalidArgument listing the algorithms of the
// collective.
Result<const Algorithm*> SelectAlgorithm(Collective c, std::string_view name,
                                         const Problem& problem);

}  // namespace jaxccomp
