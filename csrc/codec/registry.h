// The table of codecs, and specs: strings that name a codec with its options.
//
//   spec  = stage ["|" stage]                      "bf16|lossless"
//   stage = name [":" key "=" value {"," ...}]     "int8:block=32,rounding=stochastic"
//
// A second stage encodes the first one's bytes, and must be lossless.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codec/codec.h"

namespace jaxccomp {

// An option of a codec: a word from a list, or a number within limits.
struct CodecOption {
  std::string_view name;
  std::string_view default_value;      // part of the wire format: never changed
  std::string_view description;
  std::span<const std::string_view> choices = {};   // empty: a number
  double min = 0;
  double max = 0;
  bool integer = false;
};

// Checked values of all options of a codec.
class CodecOptions {
 public:
  std::string_view Text(std::string_view name) const { return values_.find(name)->second; }
  int64_t Integer(std::string_view name) const;
  double Number(std::string_view name) const;
  // The canonical spec: the codec's name and its non-default options, sorted by name.
  const std::string& spec() const { return spec_; }

 private:
  friend class SpecParser;
  std::map<std::string, std::string, std::less<>> values_;
  std::string spec_;
};

// A row of the table of codecs.
struct CodecInfo {
  std::string_view name;
  std::string_view description;
  std::string_view ratio;              // typical, as text
  std::string_view error = {};         // as text; empty if lossless
  bool lossless = false;
  DTypeSet dtypes = 0;
  std::span<const CodecOption> options = {};   // sorted by name
  // Returns null for options that exclude each other.
  std::unique_ptr<const Codec> (*make)(const CodecOptions&) = nullptr;
  // Why it cannot be used here, such as a missing library; empty if it can.
  std::string (*missing)() = nullptr;
};

std::span<const CodecInfo* const> CodecTable();

// One stage of a spec: its row and its options.
struct CodecStage {
  const CodecInfo* row;
  CodecOptions options;
};

// The stages of a spec, for other implementations of a codec. The text of kInvalidArgument lists the
// valid choices.
Result<std::vector<CodecStage>> ParseCodecSpec(std::string_view spec);

// The codec of a spec. The text of kInvalidArgument lists the valid choices; the text of kUnavailable names the missing
// part. Equal specs give the same object.
Result<std::shared_ptr<const Codec>> LookupCodec(std::string_view spec);

}  // namespace jaxccomp
