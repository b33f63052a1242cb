// Which algorithm "auto" takes: rows, from which the choice and its description come.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "collective/algorithm.h"

namespace jaxccomp {

// The first row of a collective that holds for a problem says which. Bytes are those of a block.
struct DefaultRow {
  static constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
  enum class Values : uint8_t {
    kAll,
    kCoded,         // with a codec
    kMergedAtOnce,  // of half types, which are then rounded once instead of at each step, and with a codec,
                    // which then codes once or twice instead of once per hop
    kPackable,      // without a codec: several blocks may travel as one message
  };

  Collective collective;
  std::string_view algorithm;
  int64_t least_ranks = 1;
  int64_t most_ranks = kAny;
  int64_t above_bytes = -1;
  int64_t most_bytes = kAny;
  int64_t most_bytes_of_all = kAny;   // of all ranks' blocks together
  Values values = Values::kAll;
  // Leaders of groups have less to send than all ranks: through links between hosts, or, as long as nothing
  // leaves a GPU for another rank of it, between GPUs.
  bool in_groups = false;

  bool Holds(const Problem& problem) const;
  // "up to 8 ranks, for half types and codecs"; "otherwise" without a condition.
  std::string ToString() const;
};

std::span<const DefaultRow> DefaultTable();

std::string_view DefaultAlgorithm(Collective collective, const Problem& problem);

// When "auto" takes that algorithm: "default above 1 MiB"; empty where it never does, or has no choice.
std::string DescribeDefault(const Algorithm& algorithm);

}  // namespace jaxccomp
