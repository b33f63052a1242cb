// The engine's options: one table row each. Python's config.py sets them by name.
#pragma once

#include <cstdint>
#include <string_view>

#include "common/status.h"

namespace jaxccomp {

struct Options {
  double timeout_seconds = 300;     // how long an operation may wait for its peers
  int64_t spin_microseconds = 100;  // how long a caller polls its operation without progress
                                    // before it hands the operation to the progress thread
  int64_t chunk_bytes = 512 << 10;  // chunk size of the pipelined algorithms
  int64_t coder_threads = -1;       // threads that help with coding and merging; -1: the spare
                                    // cores, at most 4
  int64_t check_programs = 1;       // compare the collectives of a program between ranks
  int64_t retain_memory = 1;        // keep freed pages in the process (pages.h)
  int64_t huge_pages = 1;           // ask for huge pages behind large results
  int64_t device_part_bytes = 4 << 20;   // of operands on a GPU, moved at a time (cuda/stage/stage.h)
};

// kInvalidArgument if `name` is unknown (with a list of the options) or if `value` does not parse.
Status SetOption(Options* options, std::string_view name, std::string_view value);

}  // namespace jaxccomp
