#include "common/options.h"

#include <algorithm>
#include <cstdlib>
#include <string>

namespace jaxccomp {
namespace {

struct Row {
  std::string_view name;
  int64_t Options::*integer;
  double Options::*real;
  double smallest;
};

// Larger numbers, also infinity, are clamped to these limits: 30 years in seconds, and a number that fits int64_t.
constexpr double kLargestReal = 1e9, kLargestInteger = 1e18;

constexpr Row kRows[] = {
    {"timeout_seconds", nullptr, &Options::timeout_seconds, 0.001},
    {"spin_microseconds", &Options::spin_microseconds, nullptr, 0},
    {"chunk_bytes", &Options::chunk_bytes, nullptr, 64},
    {"coder_threads", &Options::coder_threads, nullptr, -1},
    {"check_programs", &Options::check_programs, nullptr, 0},
    {"retain_memory", &Options::retain_memory, nullptr, 0},
    {"huge_pages", &Options::huge_pages, nullptr, 0},
    {"device_part_bytes", &Options::device_part_bytes, nullptr, 4096},
};

}  // namespace

Status SetOption(Options* options, std::string_view name, std::string_view value) {
  std::string known;
  for (const Row& row : kRows) {
    known += (known.empty() ? "" : ", ") + std::string(row.name);
    if (row.name != name) continue;
    const std::string text(value);
    char* end = nullptr;
    const double number = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0' || !(number >= row.smallest)) {
      return {Code::kInvalidArgument,
              "option " + std::string(name) + " takes a number of at least " +
                  std::to_string(row.smallest) + ", not '" + text + "'"};
    }
    if (row.integer != nullptr) {
      options->*row.integer = static_cast<int64_t>(std::min(number, kLargestInteger));
      // Chunks must end between elements.
      if (row.integer == &Options::chunk_bytes) options->chunk_bytes &= ~int64_t{63};
    } else {
      options->*row.real = std::min(number, kLargestReal);
    }
    return Status::Ok();
  }
  return {Code::kInvalidArgument,
          "unknown engine option '" + std::string(name) + "': there are " + known};
}

}  // namespace jaxccomp
