// The formats of nvCOMP that are codecs here: value types, options, and sizes. Also for ranks without
// the library or a GPU.
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
  int64_t chunk_bytes = 1 << 16;   // of values that nvCOMP encodes at a time
  bool bit_shuffle = false;        // only lz4
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

// The parsed spec of an nvCOMP codec; nullopt for other codecs and pipelines.
std::optional<Spec> ReadSpec(std::string_view canonical);

// The layout of an encoding: docs/wire_format_nvcomp.md.
inline constexpr uint8_t kMagic = 0x4e;
inline constexpr int64_t kChecksumAt = 4;
inline constexpr int64_t kHeaderBytes = 8;
inline constexpr int64_t kEntryBytes = 4;
inline constexpr uint32_t kStoredBit = 0x80000000u;

int64_t ChunksOf(const Spec& spec, int64_t value_bytes);

// The most bytes of an encoding: chunks that do not shrink are stored. -1 if `count` is negative or the
// bytes overflow.
int64_t MaxEncodedBytes(const Spec& spec, DType dtype, int64_t count);
int64_t MinEncodedBytes(const Spec& spec, DType dtype, int64_t count);

}  // namespace jaxccomp::nvcomp
