// The formats of nvCOMP that codecs are made of: what they take values for, their options, and the
// sizes that all ranks know, whether or not they have the library or a GPU.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "codec/nvcomp/abi.h"
#include "codec/registry.h"
#include "common/dtype.h"

namespace jaxccomp::nvcomp {

// The numbers go on the wire.
enum class Format : uint8_t { kAns = 1, kLz4 = 2, kZstd = 3 };
inline constexpr int kFormatCount = 3;

// A codec and the values of its options.
struct Spec {
  Format format = Format::kAns;
  int64_t chunk_bytes = 1 << 16;   // of values, that nvCOMP codes at a time
  bool bit_shuffle = false;        // of lz4
};

struct FormatRow {
  Format format;
  std::string_view name;   // of the codec
  std::string_view description;
  std::string_view ratio;
  std::span<const CodecOption> options;
  const char* symbol;   // nvcompBatched<symbol>CompressAsync and so on
  Type (*type)(DType);
  Options (*encode_options)(const Spec&, Type);
  Options (*decode_options)(const Spec&, Type);
};

std::span<const FormatRow> Formats();
const FormatRow& RowOf(Format format);

// The codec that a canonical spec names; none where it is another's, or a pipeline's.
std::optional<Spec> ReadSpec(std::string_view canonical);

// The layout of a code: docs/wire_format_nvcomp.md.
inline constexpr uint8_t kMagic = 0x4e;
inline constexpr int64_t kChecksumAt = 4;
inline constexpr int64_t kHeaderBytes = 8;
inline constexpr int64_t kEntryBytes = 4;
inline constexpr uint32_t kStoredBit = 0x80000000u;

int64_t ChunksOf(const Spec& spec, int64_t value_bytes);

// What an encoding takes at most: a chunk that does not become smaller travels as it is. -1 where
// such bytes cannot be counted.
int64_t MaxEncodedBytes(const Spec& spec, DType dtype, int64_t count);
int64_t MinEncodedBytes(const Spec& spec, DType dtype, int64_t count);

}  // namespace jaxccomp::nvcomp
