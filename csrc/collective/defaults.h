// The table of default algorithms ("auto"): for the choice and its description.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "collective/algorithm.h"

namespace jaxccomp {

// The first row of a collective that holds for a problem gives the algorithm. Bytes are per block.
struct DefaultRow {
  static constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
  enum class Values : uint8_t {
    kAll,
    kEncoded,         // with a codec
    kMergedAtOnce,  // half types or a codec: merging at once rounds once instead of at each step, and encodes
                    // once or twice instead of once per hop
    kPackable,      // without a codec: one message may carry several blocks
  };

  Collective collective;
  std::string_view algorithm;
  int64_t min_ranks = 1;
  int64_t max_ranks = kAny;
  int64_t above_bytes = -1;
  int64_t max_bytes = kAny;
  int64_t max_bytes_of_all = kAny;   // of all ranks' blocks together
  Values values = Values::kAll;
  // Only for several groups with several ranks in some: then only group leaders send between groups (hosts; or GPUs,
  // if ranks that share a GPU exchange values within it).
  bool in_groups = false;
  bool on_own_hosts = false;   // only if no two ranks share a host

  bool Holds(const Problem& problem) const;
  // "up to 8 ranks, for half types and codecs"; "otherwise" without a condition.
  std::string ToString() const;
};

std::span<const DefaultRow> DefaultTable();

std::string_view DefaultAlgorithm(Collective collective, const Problem& problem);

// When "auto" selects the algorithm: "default above 1 MiB"; "" if never, or if there is only one.
std::string DescribeDefault(const Algorithm& algorithm);

}  // namespace jaxccomp
