#include "codec/nvcomp/formats.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <iterator>
#include <limits>

namespace jaxccomp::nvcomp {
namespace {

constexpr std::string_view kChunkChoices[] = {"65536", "131072", "262144", "524288", "1048576"};
constexpr CodecOption kChunk = {
    .name = "chunk",
    .default_value = "65536",
    .description = "bytes of values that nvCOMP codes at a time, each by itself",
    .choices = kChunkChoices};
constexpr std::string_view kShuffleChoices[] = {"bit", "none"};
constexpr CodecOption kShuffle = {
    .name = "shuffle",
    .default_value = "bit",
    .description = "bit: the first bits of all words come first, then the second ones, and so on",
    .choices = kShuffleChoices};

constexpr CodecOption kChunkOnly[] = {kChunk};
constexpr CodecOption kLz4Options[] = {kChunk, kShuffle};

Type AnsType(DType dtype) {
  if (IsHalf(dtype)) return Type::kFloat16;
  const bool single = dtype == DType::kFloat32 || dtype == DType::kComplex64;
  return single ? Type::kFloat32 : Type::kBytes;
}

Type Lz4Type(DType dtype) {
  switch (SizeBytes(dtype)) {
    case 1: return Type::kBytes;
    case 2: return Type::kUInt16;
    default: return Type::kUInt32;
  }
}

template <typename T>
Options Packed(const T& options) {
  static_assert(sizeof(T) == sizeof(Options));
  return std::bit_cast<Options>(options);
}

constexpr FormatRow kRows[] = {
    {.format = Format::kAns,
     .name = "nvcomp.ans",
     .description = "nvCOMP's entropy coder, of exponents where there are any; NVIDIA GPUs only",
     .ratio = "at least 1; not yet measured",
     .options = kChunkOnly,
     .symbol = "ANS",
     .type = &AnsType,
     .encode_options =
         [](const Spec&, Type type) { return Packed(AnsEncodeOptions{.type = type}); },
     .decode_options =
         [](const Spec&, Type type) { return Packed(AnsDecodeOptions{.type = type}); }},
    {.format = Format::kLz4,
     .name = "nvcomp.lz4",
     .description = "nvCOMP's LZ4, of bit planes; NVIDIA GPUs only",
     .ratio = "at least 1; not yet measured",
     .options = kLz4Options,
     .symbol = "LZ4",
     .type = &Lz4Type,
     .encode_options =
         [](const Spec& spec, Type type) {
           return Packed(Lz4EncodeOptions{.type = type, .bit_shuffle = spec.bit_shuffle});
         },
     .decode_options =
         [](const Spec& spec, Type type) {
           return Packed(Lz4DecodeOptions{.type = type, .bit_shuffle = spec.bit_shuffle});
         }},
    {.format = Format::kZstd,
     .name = "nvcomp.zstd",
     .description = "nvCOMP's Zstandard of bytes; NVIDIA GPUs only",
     .ratio = "at least 1; not yet measured",
     .options = kChunkOnly,
     .symbol = "Zstd",
     .type = [](DType) { return Type::kBytes; },
     .encode_options = [](const Spec&, Type) { return Options{}; },
     .decode_options = [](const Spec&, Type) { return Packed(ZstdDecodeOptions{}); }},
};
static_assert(std::size(kRows) == kFormatCount);

// The value of an option in "name:key=value,key=value", or its default.
std::string_view ValueOf(const CodecOption& option, std::string_view pairs) {
  while (!pairs.empty()) {
    const std::string_view pair = pairs.substr(0, pairs.find(','));
    pairs.remove_prefix(std::min(pairs.size(), pair.size() + 1));
    const size_t equals = pair.find('=');
    if (pair.substr(0, equals) == option.name) return pair.substr(equals + 1);
  }
  return option.default_value;
}

int64_t Number(std::string_view text) {
  int64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

}  // namespace

std::span<const FormatRow> Formats() { return kRows; }

const FormatRow& RowOf(Format format) { return kRows[static_cast<int>(format) - 1]; }

std::optional<Spec> ReadSpec(std::string_view canonical) {
  if (canonical.find('|') != std::string_view::npos) return std::nullopt;
  const size_t colon = canonical.find(':');
  for (const FormatRow& row : kRows) {
    if (row.name != canonical.substr(0, colon)) continue;
    const std::string_view pairs =
        colon == std::string_view::npos ? std::string_view() : canonical.substr(colon + 1);
    Spec spec{.format = row.format};
    for (const CodecOption& option : row.options) {
      const std::string_view value = ValueOf(option, pairs);
      if (option.name == "chunk") spec.chunk_bytes = Number(value);
      if (option.name == "shuffle") spec.bit_shuffle = value == "bit";
    }
    return spec;
  }
  return std::nullopt;
}

int64_t ChunksOf(const Spec& spec, int64_t value_bytes) {
  return value_bytes / spec.chunk_bytes + (value_bytes % spec.chunk_bytes != 0);
}

int64_t MaxEncodedBytes(const Spec& spec, DType dtype, int64_t count) {
  // Below half of the range the sum cannot overflow: a chunk has far more bytes than its entry.
  const int64_t maximum = std::numeric_limits<int64_t>::max() / 2 / SizeBytes(dtype);
  if (count <= 0 || count > maximum) return count == 0 ? 0 : -1;
  const int64_t bytes = count * SizeBytes(dtype);
  return kHeaderBytes + kEntryBytes * ChunksOf(spec, bytes) + bytes;
}

int64_t MinEncodedBytes(const Spec& spec, DType dtype, int64_t count) {
  const int64_t bytes = count * SizeBytes(dtype);
  return bytes == 0 ? 0 : kHeaderBytes + (kEntryBytes + 1) * ChunksOf(spec, bytes);
}

}  // namespace jaxccomp::nvcomp
