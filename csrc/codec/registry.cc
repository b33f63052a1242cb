#include "codec/registry.h"

#include <charconv>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "codec/pipeline.h"
#include "codec/rows.h"

namespace jaxccomp {
namespace {

constexpr std::string_view kGrammar =
    "a spec reads \"name\", \"name:key=value,key=value\" or \"first|second\"";

// Longer than any valid spec: limits text from files or the wire.
constexpr size_t kLongestSpec = 1024;
// Cached codecs are never freed; programs use a handful.
constexpr size_t kMaxKept = 1024;

std::vector<std::string_view> Split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (;;) {
    const size_t end = text.find(at);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string_view Trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

std::string Quoted(std::string_view text) { return std::string("'").append(text).append("'"); }

template <typename Names>
std::string List(const Names& names) {
  std::string list;
  for (std::string_view name : names) list += (list.empty() ? "" : ", ") + Quoted(name);
  return list.empty() ? "none" : list;
}

Status Wrong(const std::string& what) { return {Code::kInvalidArgument, what}; }

const CodecInfo* FindRow(std::string_view name) {
  for (const CodecInfo* row : CodecTable()) {
    if (row->name == name) return row;
  }
  return nullptr;
}

template <typename T>
bool Read(std::string_view text, T* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

std::string Range(const CodecOption& option) {
  const auto show = [](double v) {
    char text[32];
    const auto end = std::to_chars(text, text + sizeof(text), v).ptr;
    return std::string(text, end);
  };
  return (option.integer ? "a whole number from " : "a number from ") + show(option.min) +
         " to " + show(option.max);
}

// Returns the value in its canonical form, or an error.
Result<std::string> CheckValue(std::string_view codec, const CodecOption& option,
                               std::string_view value) {
  std::string valid;
  if (!option.choices.empty()) {
    for (std::string_view choice : option.choices) {
      if (choice == value) return std::string(value);
    }
    valid = "one of " + List(option.choices);
  } else {
    valid = Range(option);
    char text[32];
    int64_t whole = 0;
    double number = 0;
    if (option.integer) {
      if (Read(value, &whole) && whole >= option.min && whole <= option.max) {
        return std::string(text, std::to_chars(text, text + sizeof(text), whole).ptr);
      }
    } else if (Read(value, &number) && number >= option.min && number <= option.max) {
      return std::string(text, std::to_chars(text, text + sizeof(text), number).ptr);
    }
  }
  return Wrong("codec " + Quoted(codec) + ": " + std::string(option.name) + "=" +
               std::string(value) + " is not valid, it must be " + valid);
}

}  // namespace

class SpecParser {
 public:
  static Result<CodecStage> Read(std::string_view text) {
    const size_t colon = text.find(':');
    const std::string_view name = Trim(text.substr(0, colon));
    const CodecInfo* row = FindRow(name);
    if (row == nullptr) {
      std::vector<std::string_view> names;
      for (const CodecInfo* known : CodecTable()) names.push_back(known->name);
      return Wrong("unknown codec " + Quoted(name) + ": valid are " + List(names));
    }
    CodecOptions options;
    if (colon != std::string_view::npos) {
      for (std::string_view pair : Split(text.substr(colon + 1), ',')) {
        if (Status status = Option(*row, pair, &options); !status.ok()) return status;
      }
    }
    for (const CodecOption& option : row->options) {
      options.values_.try_emplace(std::string(option.name), option.default_value);
    }
    options.spec_ = row->name;
    char separator = ':';
    for (const CodecOption& option : row->options) {   // sorted by name
      const std::string_view value = options.Text(option.name);
      if (value == option.default_value) continue;
      options.spec_.append(1, separator).append(option.name).append("=").append(value);
      separator = ',';
    }
    return CodecStage{row, std::move(options)};
  }

  static Result<std::shared_ptr<const Codec>> Make(const CodecStage& stage) {
    const CodecInfo& row = *stage.row;
    if (row.missing != nullptr) {
      if (std::string reason = row.missing(); !reason.empty()) {
        return Status(Code::kUnavailable,
                      "codec " + Quoted(row.name) + " is not available here: " + reason);
      }
    }
    std::shared_ptr<const Codec> codec = row.make(stage.options);
    if (codec == nullptr) return Excluding(row, stage.options);
    return codec;
  }

 private:
  // The error for options that exclude each other.
  static Status Excluding(const CodecInfo& row, const CodecOptions& options) {
    std::vector<std::string_view> given;
    for (const CodecOption& option : row.options) {
      if (options.Text(option.name) != option.default_value) given.push_back(option.name);
    }
    return Wrong("codec " + Quoted(row.name) + ": the options " + List(given) +
                 " exclude each other: give one of them");
  }

  static Status Option(const CodecInfo& row, std::string_view pair, CodecOptions* options) {
    const size_t equals = pair.find('=');
    if (equals == std::string_view::npos) {
      return Wrong("codec " + Quoted(row.name) + ": " + Quoted(Trim(pair)) +
                   " is not key=value; " + std::string(kGrammar));
    }
    const std::string_view key = Trim(pair.substr(0, equals));
    std::vector<std::string_view> keys;
    for (const CodecOption& option : row.options) {
      keys.push_back(option.name);
      if (option.name != key) continue;
      Result<std::string> value = CheckValue(row.name, option, Trim(pair.substr(equals + 1)));
      if (!value.ok()) return value.status();
      if (!options->values_.emplace(key, *value).second) {
        return Wrong("codec " + Quoted(row.name) + ": key " + Quoted(key) + " is given twice");
      }
      return Status::Ok();
    }
    return Wrong("unknown key " + Quoted(key) + " of codec " + Quoted(row.name) +
                 ": valid are " + List(keys));
  }
};

int64_t CodecOptions::Integer(std::string_view name) const {
  int64_t value = 0;
  Read(Text(name), &value);
  return value;
}

double CodecOptions::Number(std::string_view name) const {
  double value = 0;
  Read(Text(name), &value);
  return value;
}

std::span<const CodecInfo* const> CodecTable() {
  static const std::vector<const CodecInfo*> table = [] {
    std::vector<const CodecInfo*> rows;
    for (std::span<const CodecInfo> family : {RawRows(), LosslessRows(), DeltaRows(), CastRows(), QuantizeRows(),
                                              SignRows(), SparseRows(), LibraryRows(),
                                              NvcompRows()}) {
      for (const CodecInfo& row : family) rows.push_back(&row);
    }
    return rows;
  }();
  return table;
}

Result<std::vector<CodecStage>> ParseCodecSpec(std::string_view spec) {
  std::vector<CodecStage> stages;
  for (std::string_view part : Split(spec, '|')) {
    Result<CodecStage> stage = SpecParser::Read(part);
    if (!stage.ok()) return stage.status();
    stages.push_back(std::move(*stage));
  }
  return stages;
}

namespace {

Result<std::shared_ptr<const Codec>> Parse(std::string_view spec) {
  std::vector<std::shared_ptr<const Codec>> stages;
  Result<std::vector<CodecStage>> parsed = ParseCodecSpec(spec);
  if (!parsed.ok()) return parsed.status();
  for (const CodecStage& one : *parsed) {
    auto stage = SpecParser::Make(one);
    if (!stage.ok()) return stage.status();
    stages.push_back(*stage);
  }
  const std::shared_ptr<const Codec> first = stages[0];
  std::erase_if(stages, [](const auto& stage) { return stage->traits().spec == "raw"; });
  if (stages.empty()) return first;
  if (stages.size() == 1) return stages[0];
  if (stages.size() > 2) {
    return Wrong("codec " + Quoted(spec) + ": two stages at most; " + std::string(kGrammar));
  }
  if (!stages[1]->traits().lossless) {
    return Wrong("codec " + Quoted(spec) + ": " + Quoted(stages[1]->traits().spec) +
                 " is lossy and can only be the first stage");
  }
  if (!stages[0]->traits().runs_on_host) {
    return Wrong("codec " + Quoted(spec) + ": " + Quoted(stages[0]->traits().spec) +
                 " runs on GPUs only, where it stands alone or is the second stage");
  }
  return std::shared_ptr<const Codec>(MakePipeline(stages[0], stages[1]));
}

}  // namespace

Result<std::shared_ptr<const Codec>> LookupCodec(std::string_view spec) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const Codec>, std::less<>> known;
  if (spec.size() > kLongestSpec) {
    return Wrong("a codec spec of " + std::to_string(spec.size()) + " characters is not one");
  }
  std::lock_guard<std::mutex> lock(mutex);
  if (auto found = known.find(spec); found != known.end()) return found->second;
  auto made = Parse(spec);
  if (!made.ok()) return made.status();
  if (known.size() >= kMaxKept) return made;
  // Equivalent specs share the object.
  const std::string canonical = (*made)->traits().spec;
  auto codec = known.try_emplace(canonical, *made).first->second;
  known.try_emplace(std::string(spec), codec);
  return codec;
}

}  // namespace jaxccomp
