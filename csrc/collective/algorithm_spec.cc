#include "collective/algorithm_spec.h"

#include <charconv>
#include <string>

namespace jaxccomp {
namespace {

constexpr int64_t kMaxPartitions = 4096;
constexpr int64_t kMaxChunkBytes = int64_t{1} << 40;

Status Wrong(std::string_view text, const std::string& what) {
  return {Code::kInvalidArgument, "algorithm \"" + std::string(text) + "\": " + what};
}

// Parses an integer within [least, most]; -1 for any other text.
int64_t Number(std::string_view text, int64_t minimum, int64_t maximum) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && number >= minimum && number <= maximum ? number : -1;
}

Result<AlgorithmSpec> ParseRegistered(Collective c, std::string_view key) {
  const RegisteredSchedules* const found = FindRegistered(key);
  if (found == nullptr || found->algorithm.collective != c) {
    return Wrong(key, "this process has made no such schedules of " + std::string(Info(c).name) +
                          ": they are made where a program is lowered. Compile the program in this process");
  }
  return AlgorithmSpec{.name = found->name, .chunk_bytes = found->problem.chunk_bytes, .registered = found};
}

std::string Described(const Problem& p) {
  return std::to_string(p.ranks) + " ranks, root " + std::to_string(p.root) + ", blocks of " +
         std::to_string(p.block_bytes) + " bytes" + (p.encoded ? ", coded" : "") +
         (p.feedback ? ", with feedback" : "") + (p.reverse ? ", reversed" : "");
}

}  // namespace

void AlgorithmSpec::ApplyTo(Problem* problem) const {
  problem->registered = registered;
  if (chunk_bytes > 0) problem->chunk_bytes = chunk_bytes;
  problem->partitions = partitions;
}

Result<AlgorithmSpec> ParseAlgorithm(Collective c, std::string_view text) {
  AlgorithmSpec spec;
  if (IsRegistered(text)) return ParseRegistered(c, text);
  const size_t colon = text.find(':');
  spec.name = text.substr(0, colon);
  Result<const Algorithm*> algorithm = SelectAlgorithm(c, spec.name, Problem());
  if (!algorithm.ok()) return algorithm.status();
  std::string_view rest = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  if (colon != std::string_view::npos && rest.empty()) {
    return Wrong(text, "an option must follow the colon, such as chunk=131072");
  }
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string_view option = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? "" : rest.substr(comma + 1);
    const size_t equals = option.find('=');
    const std::string_view key = option.substr(0, equals);
    const std::string_view value =
        equals == std::string_view::npos ? "" : option.substr(equals + 1);
    if (key == "chunk") {
      spec.chunk_bytes = Number(value, kBlockAlign, kMaxChunkBytes);
      if (spec.chunk_bytes < 0) {
        return Wrong(text, "chunk is a number of bytes from " + std::to_string(kBlockAlign) +
                               ", not \"" + std::string(value) + "\"");
      }
      spec.chunk_bytes = spec.chunk_bytes / kBlockAlign * kBlockAlign;  // an element boundary for all dtypes
    } else if (key == "partitions" && spec.name == "parameter_server") {
      spec.partitions = static_cast<int>(Number(value, 1, kMaxPartitions));
      if (spec.partitions < 0) {
        return Wrong(text, "partitions is a number from 1 to " + std::to_string(kMaxPartitions) +
                               ", not \"" + std::string(value) + "\"");
      }
    } else {
      return Wrong(text, "there is no option \"" + std::string(key) +
                             "\": every algorithm takes chunk=BYTES, parameter_server also "
                             "partitions=K");
    }
  }
  return spec;
}

Result<const Algorithm*> SelectAlgorithm(Collective c, const AlgorithmSpec& spec, const Problem& problem) {
  if (spec.registered == nullptr) return SelectAlgorithm(c, spec.name, problem);
  const Problem& made_for = spec.registered->problem;
  if (Described(made_for) != Described(problem)) {
    return Wrong(spec.name, "its schedules were made for " + Described(made_for) + ", not for " +
                                Described(problem));
  }
  return &spec.registered->algorithm;
}

}  // namespace jaxccomp
