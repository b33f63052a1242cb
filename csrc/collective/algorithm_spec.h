// Parses the argument algorithm=: a name with options, such as "two_shot:chunk=131072" or
// "parameter_server:partitions=2", or the key of schedules that the program has made (registered.h).
#pragma once

#include <cstdint>
#include <string_view>

#include "collective/algorithm.h"
#include "collective/registered.h"
#include "common/status.h"

namespace jaxccomp {

struct AlgorithmSpec {
  std::string_view name;      // part of the text; "auto" leaves the choice to the table
  int64_t chunk_bytes = 0;    // 0: as the options say
  int partitions = 0;         // 0: a sound number
  const RegisteredSchedules* registered = nullptr;

  // Sets what was given.
  void ApplyTo(Problem* problem) const;
};

// kInvalidArgument that says what is allowed when there is no such algorithm, or it does not take
// such an option.
Result<AlgorithmSpec> ParseAlgorithm(Collective c, std::string_view text);

// SelectAlgorithm, of what is named; `problem` has had the spec applied to it. Registered schedules were made
// for one problem: kInvalidArgument for any other one.
Result<const Algorithm*> SelectAlgorithm(Collective c, const AlgorithmSpec& spec, const Problem& problem);

}  // namespace jaxccomp
