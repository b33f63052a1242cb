#include "collective/defaults.h"

#include <algorithm>

#include "collective/patterns/forest.h"

namespace jaxccomp {
namespace {

constexpr int64_t kKiB = 1024, kMiB = 1024 * kKiB;

using enum Collective;
using enum DefaultRow::Values;

constexpr DefaultRow kDefaults[] = {
    {.collective = kBcast, .algorithm = "binomial", .max_bytes = 32 * kKiB},
    {.collective = kBcast, .algorithm = "scatter_allgather", .min_ranks = 9, .max_bytes = kMiB},
    {.collective = kBcast, .algorithm = "chain"},

    {.collective = kAllreduce, .algorithm = "hierarchical", .above_bytes = kMiB, .in_groups = true},
    // Encodes once instead of twice, and sends the same number of bytes.
    {.collective = kAllreduce, .algorithm = "one_shot", .min_ranks = 2, .max_ranks = 2,
     .values = kEncoded},
    {.collective = kAllreduce, .algorithm = "one_shot", .max_ranks = 8,
     .max_bytes_of_all = 64 * kKiB, .values = kMergedAtOnce},
    {.collective = kAllreduce, .algorithm = "two_shot", .values = kMergedAtOnce},
    {.collective = kAllreduce, .algorithm = "one_shot", .max_ranks = 4, .max_bytes = 4 * kKiB},
    {.collective = kAllreduce, .algorithm = "recursive_doubling", .min_ranks = 5,
     .max_bytes = 32 * kKiB},
    // A link carries one stream in each direction: its bytes are those of two_shot, without several senders at once.
    {.collective = kAllreduce, .algorithm = "ring", .max_ranks = 16, .above_bytes = 2 * kMiB,
     .on_own_hosts = true},
    {.collective = kAllreduce, .algorithm = "two_shot"},

    {.collective = kReduce, .algorithm = "direct", .max_ranks = 4},
    {.collective = kReduce, .algorithm = "direct", .values = kMergedAtOnce},
    {.collective = kReduce, .algorithm = "binomial"},

    {.collective = kAllgather, .algorithm = "bruck", .min_ranks = 9, .max_bytes = 4 * kKiB,
     .values = kPackable},
    {.collective = kAllgather, .algorithm = "direct", .max_ranks = 8},
    {.collective = kAllgather, .algorithm = "direct", .max_bytes = 32 * kKiB},
    {.collective = kAllgather, .algorithm = "ring"},
    {.collective = kAllgatherv, .algorithm = "direct", .max_ranks = 8},
    {.collective = kAllgatherv, .algorithm = "ring"},

    {.collective = kGather, .algorithm = "binomial", .min_ranks = 16, .max_bytes = 4 * kKiB,
     .values = kPackable},
    {.collective = kGather, .algorithm = "direct"},
    {.collective = kGatherv, .algorithm = "direct"},
    {.collective = kScatter, .algorithm = "binomial", .min_ranks = 16, .max_bytes = 4 * kKiB,
     .values = kPackable},
    {.collective = kScatter, .algorithm = "direct"},
    {.collective = kScatterv, .algorithm = "direct"},

    {.collective = kReduceScatter, .algorithm = "direct", .max_ranks = 8},
    {.collective = kReduceScatter, .algorithm = "direct", .max_bytes = 32 * kKiB},
    {.collective = kReduceScatter, .algorithm = "direct", .values = kMergedAtOnce},
    {.collective = kReduceScatter, .algorithm = "ring"},
    {.collective = kReduceScatterv, .algorithm = "direct"},

    {.collective = kAlltoall, .algorithm = "bruck", .min_ranks = 8, .max_bytes = 256,
     .values = kPackable},
    {.collective = kAlltoall, .algorithm = "pairwise"},
    {.collective = kAlltoallv, .algorithm = "pairwise"},
    {.collective = kRaggedAlltoall, .algorithm = "direct"},

    {.collective = kScan, .algorithm = "recursive_doubling", .max_bytes = 32 * kKiB},
    {.collective = kScan, .algorithm = "chain"},
    {.collective = kExscan, .algorithm = "recursive_doubling", .max_bytes = 32 * kKiB},
    {.collective = kExscan, .algorithm = "chain"},

    {.collective = kBarrier, .algorithm = "dissemination"},
    {.collective = kSend, .algorithm = "direct"},
    {.collective = kRecv, .algorithm = "direct"},
    {.collective = kSendrecv, .algorithm = "direct"},
    {.collective = kPermute, .algorithm = "direct"},
};

std::string Bytes(int64_t bytes) {
  if (bytes % kMiB == 0) return std::to_string(bytes / kMiB) + " MiB";
  if (bytes % kKiB == 0) return std::to_string(bytes / kKiB) + " KiB";
  return std::to_string(bytes) + " bytes";
}

}  // namespace

bool DefaultRow::Holds(const Problem& problem) const {
  const int64_t bytes = problem.block_bytes;
  if (problem.ranks < min_ranks || problem.ranks > max_ranks) return false;
  if (bytes <= above_bytes || bytes > max_bytes) return false;
  if (max_bytes_of_all != kAny && bytes > max_bytes_of_all / problem.ranks) return false;
  if (in_groups && !ComeInGroups(problem.hosts, problem.ranks)) return false;
  if (on_own_hosts && !AreAllApart(problem.hosts, problem.ranks)) return false;
  switch (values) {
    case kAll: return true;
    case kEncoded: return problem.encoded;
    case kMergedAtOnce: return problem.wide || problem.encoded;
    case kPackable: return problem.multi_slot && !problem.encoded;
  }
  return false;
}

std::string DefaultRow::ToString() const {
  std::string text;
  const auto add = [&](const std::string& condition) {
    text += (text.empty() ? "" : " ") + condition;
  };
  switch (values) {
    case kAll: break;
    case kEncoded: add("with a codec"); break;
    case kMergedAtOnce: add("for half types and codecs"); break;
    case kPackable: add("without a codec"); break;
  }
  if (min_ranks == max_ranks) {
    add("on " + std::to_string(min_ranks) + " ranks");
  } else if (max_ranks != kAny) {
    add("up to " + std::to_string(max_ranks) + " ranks");
  } else if (min_ranks > 1) {
    add("from " + std::to_string(min_ranks) + " ranks");
  }
  if (above_bytes >= 0) add("above " + Bytes(above_bytes));
  const bool from = max_ranks == kAny && min_ranks > 1;
  const bool also = !text.empty() && !from;
  if (max_bytes != kAny) add((also ? "and " : "up to ") + Bytes(max_bytes));
  if (max_bytes_of_all != kAny) add((also ? "and nB = " : "up to nB = ") + Bytes(max_bytes_of_all));
  if (in_groups) add("where ranks share hosts");
  if (on_own_hosts) add("where each rank has a host of its own");
  return text.empty() ? "otherwise" : text;
}

std::span<const DefaultRow> DefaultTable() { return kDefaults; }

std::string_view DefaultAlgorithm(Collective collective, const Problem& problem) {
  for (const DefaultRow& row : kDefaults) {
    if (row.collective == collective && row.Holds(problem)) return row.algorithm;
  }
  return "direct";   // not reached: the last row of each collective has no condition
}

std::string DescribeDefault(const Algorithm& algorithm) {
  std::string text;
  for (const DefaultRow& row : kDefaults) {
    if (row.collective != algorithm.collective || row.algorithm != algorithm.name) continue;
    text += (text.empty() ? "default " : "; ") + row.ToString();
  }
  const auto all = AlgorithmTable();
  const bool alone = std::count_if(all.begin(), all.end(), [&](const Algorithm& other) {
                       return other.collective == algorithm.collective;
                     }) == 1;
  return alone ? "" : text;
}

}  // namespace jaxccomp
