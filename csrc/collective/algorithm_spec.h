// Parses the argument algorithm=: a name with options, such as "two_shot:chunk=131072" or
// "parameter_server:partitions=2", or the key of custom schedules (registered.h).
#pragma once

#include <cstdint>
#include <string_view>

#include "collective/algorithm.h"
#include "collective/registered.h"
#include "common/status.h"

namespace jaxccomp {

struct AlgorithmSpec {
  std::string_view name;      // points into the text; "auto": the table chooses
  int64_t chunk_bytes = 0;    // 0: the default of the options
  int partitions = 0;         // 0: the algorithm's default
  const RegisteredSchedules* registered = nullptr;

  // Sets the given options.
  void ApplyTo(Problem* problem) const;
};

// kInvalidArgument for an unknown algorithm or option; its text lists the valid ones.
Result<AlgorithmSpec> ParseAlgorithm(Collective c, std::string_view text);

// Returns the algorithm of the spec; ApplyTo(problem) has been called. Registered schedules were made for one
// problem: kInvalidArgument for another one.
Result<const Algorithm*> SelectAlgorithm(Collective c, const AlgorithmSpec& spec, const Problem& problem);

}  // namespace jaxccomp
