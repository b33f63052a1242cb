#include "codec/frame.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "codec/registry.h"
#include "common/crc32c.h"

namespace jaxccomp {
namespace {

constexpr uint8_t kMagic[4] = {'J', 'C', 'C', 'F'};
constexpr uint8_t kVersion = 1;
constexpr uint8_t kFlagChecksum = 1;
constexpr uint8_t kFlagDelta = 2;
constexpr int64_t kFixedBytes = 16;
constexpr int64_t kMaxDimensions = 64;
constexpr int64_t kMaxSpecBytes = 255;
constexpr int64_t kWordBytes = 4;   // of the index, and of a checksum

// The numbers go on the wire.
constexpr FrameDType kFrameDTypes[] = {
    {0, "bool", DType::kBool},
    {1, "int8", DType::kInt8},
    {2, "int16", DType::kInt16},
    {3, "int32", DType::kInt32},
    {4, "int64", DType::kInt64},
    {5, "uint8", DType::kUInt8},
    {6, "uint16", DType::kUInt16},
    {7, "uint32", DType::kUInt32},
    {8, "uint64", DType::kUInt64},
    {9, "float16", DType::kFloat16},
    {10, "bfloat16", DType::kBFloat16},
    {11, "float32", DType::kFloat32},
    {12, "float64", DType::kFloat64},
    {13, "complex64", DType::kComplex64},
    {14, "complex128", DType::kComplex128},
    {32, "float8_e3m4", DType::kOpaque8},
    {33, "float8_e4m3", DType::kOpaque8},
    {34, "float8_e4m3b11fnuz", DType::kOpaque8},
    {35, "float8_e4m3fn", DType::kOpaque8},
    {36, "float8_e4m3fnuz", DType::kOpaque8},
    {37, "float8_e5m2", DType::kOpaque8},
    {38, "float8_e5m2fnuz", DType::kOpaque8},
    {39, "float8_e8m0fnu", DType::kOpaque8},
    {40, "float4_e2m1fn", DType::kOpaque8},
    {41, "float6_e2m3fn", DType::kOpaque8},
    {42, "float6_e3m2fn", DType::kOpaque8},
    {43, "int2", DType::kOpaque8},
    {44, "uint2", DType::kOpaque8},
    {45, "int4", DType::kOpaque8},
    {46, "uint4", DType::kOpaque8},
};

Status Invalid(const std::string& what) { return {Code::kDataLoss, "not a valid frame: " + what}; }

template <typename T>
T Load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));   // the wire and all supported machines are little-endian
  return value;
}

template <typename T>
std::byte* Store(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(T));
  return at + sizeof(T);
}

// False if the product of the shape times `size_bytes` is too large.
bool CountValues(const std::vector<int64_t>& shape, int64_t size_bytes, int64_t* count) {
  const int64_t maximum = std::numeric_limits<int64_t>::max() / (4 * size_bytes);
  *count = 1;
  for (int64_t extent : shape) {
    if (extent < 0 || (extent > 0 && *count > maximum / extent)) return false;
    *count *= extent;
  }
  return true;
}

int64_t HeaderBytes(const FrameHeader& h) {
  return kFixedBytes + 8 * std::ssize(h.shape) + std::ssize(h.codec->traits().spec);
}

int64_t EntryBytes(const FrameHeader& h) { return kWordBytes * (1 + h.checksum + h.delta); }

// The bytes before the payloads. The sum does not overflow for fewer than 2^62 / 4 values.
int64_t PrefixBytes(const FrameHeader& h) {
  return HeaderBytes(h) + h.chunks() * EntryBytes(h) + (h.checksum ? kWordBytes : 0);
}

struct Chunk {
  int64_t first;
  int64_t count;
};

Chunk ChunkAt(const FrameHeader& h, int64_t i) {
  const int64_t first = i * h.chunk_values;
  return {first, std::min(h.chunk_values, h.count - first)};
}

struct IndexEntry {
  int64_t bytes = 0;
  uint32_t checksum = 0;
  uint32_t ref_checksum = 0;
};

IndexEntry ReadEntry(const FrameHeader& h, std::span<const std::byte> frame, int64_t i) {
  const std::byte* at = frame.data() + HeaderBytes(h) + i * EntryBytes(h);
  IndexEntry entry;
  entry.bytes = Load<uint32_t>(at);
  at += kWordBytes;
  if (h.checksum) {
    entry.checksum = Load<uint32_t>(at);
    at += kWordBytes;
  }
  if (h.delta) entry.ref_checksum = Load<uint32_t>(at);
  return entry;
}

uint32_t ChecksumOfValues(const void* values, int64_t bytes) {
  return Crc32c({static_cast<const std::byte*>(values), static_cast<size_t>(bytes)});
}

}  // namespace

std::span<const FrameDType> FrameDTypes() { return kFrameDTypes; }

Result<FrameHeader> MakeFrameHeader(std::string_view spec, std::string_view dtype,
                                    std::vector<int64_t> shape, int64_t chunk_values,
                                    bool checksum, bool delta) {
  auto codec = LookupCodec(spec);
  if (!codec.ok()) return codec.status();
  FrameHeader header;
  header.codec = *codec;
  for (const FrameDType& type : kFrameDTypes) {
    if (type.name == dtype) header.type = &type;
  }
  const auto wrong = [](const std::string& what) { return Status(Code::kInvalidArgument, what); };
  if (header.type == nullptr) return wrong("frames do not hold " + std::string(dtype));
  if (!header.codec->Supports(header.type->dtype)) {
    std::string valid;
    for (const FrameDType& type : kFrameDTypes) {
      if (header.codec->Supports(type.dtype)) (valid += valid.empty() ? "" : ", ") += type.name;
    }
    return wrong("codec '" + header.codec->traits().spec + "' does not code " +
                 std::string(dtype) + ": it codes " + valid);
  }
  if (chunk_values < 1 || chunk_values > kMaxChunkValues) {
    return wrong("a chunk of " + std::to_string(chunk_values) + " values is not possible: 1 to " +
                 std::to_string(kMaxChunkValues) + " are");
  }
  if (std::ssize(shape) > kMaxDimensions ||
      std::ssize(header.codec->traits().spec) > kMaxSpecBytes ||
      !CountValues(shape, SizeBytes(header.type->dtype), &header.count)) {
    return wrong("frames do not hold arrays of this shape");
  }
  header.shape = std::move(shape);
  header.chunk_values = chunk_values;
  header.checksum = checksum;
  header.delta = delta;
  return header;
}

int64_t MaxFrameBytes(const FrameHeader& header) {
  const int64_t chunks = header.chunks();
  int64_t bytes = PrefixBytes(header);
  if (chunks > 0) {
    const DType dtype = header.type->dtype;
    bytes += (chunks - 1) * header.codec->MaxEncodedBytes(dtype, header.chunk_values);
    bytes += header.codec->MaxEncodedBytes(dtype, ChunkAt(header, chunks - 1).count);
  }
  return bytes;
}

Result<int64_t> EncodeFrame(const FrameHeader& header, const void* values, const void* ref,
                            RandomKey key, std::span<std::byte> dst, Workspace& workspace) {
  const Codec& codec = *header.codec;
  const DType dtype = header.type->dtype;
  if (static_cast<int64_t>(dst.size()) < MaxFrameBytes(header)) {
    return Status(Code::kInvalidArgument, "there is no room for the frame");
  }
  std::byte* at = dst.data();
  for (uint8_t c : kMagic) at = Store(at, c);
  at = Store(at, kVersion);
  at = Store(at, static_cast<uint8_t>((header.checksum ? kFlagChecksum : 0) |
                                      (header.delta ? kFlagDelta : 0)));
  at = Store(at, header.type->number);
  at = Store(at, static_cast<uint8_t>(header.shape.size()));
  at = Store(at, static_cast<uint32_t>(header.chunk_values));
  at = Store(at, static_cast<uint8_t>(codec.traits().spec.size()));
  for (int i = 0; i < 3; ++i) at = Store(at, uint8_t{0});
  for (int64_t extent : header.shape) at = Store(at, extent);
  at = std::copy_n(reinterpret_cast<const std::byte*>(codec.traits().spec.data()),
                   codec.traits().spec.size(), at);

  std::byte* entry = at;
  std::byte* payload = dst.data() + PrefixBytes(header);
  CodingContext context(workspace);
  context.key = key;
  for (int64_t i = 0; i < header.chunks(); ++i) {
    const Chunk chunk = ChunkAt(header, i);
    const int64_t offset_bytes = chunk.first * SizeBytes(dtype);
    context.first = chunk.first;
    if (ref != nullptr) context.ref = static_cast<const std::byte*>(ref) + offset_bytes;
    auto bytes = codec.Encode(dtype, static_cast<const std::byte*>(values) + offset_bytes,
                              chunk.count, dst.subspan(payload - dst.data()), context);
    if (!bytes.ok()) return bytes.status();
    entry = Store(entry, static_cast<uint32_t>(*bytes));
    if (header.checksum) {
      entry = Store(entry, Crc32c({payload, static_cast<size_t>(*bytes)}));
    }
    if (header.delta) {
      entry = Store(entry, ChecksumOfValues(context.ref, chunk.count * SizeBytes(dtype)));
    }
    payload += *bytes;
  }
  if (header.checksum) {
    Store(entry, Crc32c(dst.first(static_cast<size_t>(entry - dst.data()))));
  }
  return payload - dst.data();
}

Result<FrameHeader> ReadFrameHeader(std::span<const std::byte> frame) {
  const auto size = static_cast<int64_t>(frame.size());
  const std::byte* const begin = frame.data();
  if (size < kFixedBytes) return Invalid("it ends within its header");
  if (std::memcmp(begin, kMagic, sizeof(kMagic)) != 0) return Invalid("it begins otherwise");
  const auto version = Load<uint8_t>(begin + 4), flags = Load<uint8_t>(begin + 5);
  if (version != kVersion) {
    return Invalid("its version is " + std::to_string(version) + ", this library reads " +
                   std::to_string(kVersion));
  }
  if ((flags & ~(kFlagChecksum | kFlagDelta)) != 0 || Load<uint8_t>(begin + 13) != 0 ||
      Load<uint16_t>(begin + 14) != 0) {
    return Invalid("it has unknown flags");
  }
  const auto number = Load<uint8_t>(begin + 6);
  const FrameDType* const type = std::find_if(std::begin(kFrameDTypes), std::end(kFrameDTypes),
                                              [&](const auto& t) { return t.number == number; });
  if (type == std::end(kFrameDTypes)) {
    return Invalid("it holds an unknown type of values, " + std::to_string(number));
  }
  const int64_t dimensions = Load<uint8_t>(begin + 7);
  const int64_t spec_bytes = Load<uint8_t>(begin + 12);
  if (size < kFixedBytes + 8 * dimensions + spec_bytes) return Invalid("it ends within its header");
  std::vector<int64_t> shape(std::min(dimensions, kMaxDimensions + 1));
  for (size_t d = 0; d < shape.size(); ++d) shape[d] = Load<int64_t>(begin + kFixedBytes + 8 * d);
  const std::string spec(reinterpret_cast<const char*>(begin) + kFixedBytes + 8 * dimensions,
                         static_cast<size_t>(spec_bytes));
  // Error messages quote the spec.
  if (std::any_of(spec.begin(), spec.end(), [](char c) { return c < ' ' || c > '~'; })) {
    return Invalid("the name of its codec is not text");
  }
  auto made = MakeFrameHeader(spec, type->name, std::move(shape), Load<uint32_t>(begin + 8),
                              (flags & kFlagChecksum) != 0, (flags & kFlagDelta) != 0);
  if (made.status().code() == Code::kUnavailable) return made.status();
  if (!made.ok()) return Invalid(made.status().message());
  const FrameHeader& header = *made;
  if (header.codec->traits().spec != spec) return Invalid("its codec is not in canonical form");

  // Check the size before reading the index.
  const int64_t prefix_bytes = PrefixBytes(header);
  if (prefix_bytes > size) return Invalid("it ends within its index");
  if (header.checksum &&
      Crc32c(frame.first(static_cast<size_t>(prefix_bytes - kWordBytes))) !=
          Load<uint32_t>(begin + prefix_bytes - kWordBytes)) {
    return Invalid("the checksum of its header does not fit");
  }
  int64_t payload_bytes = 0;
  for (int64_t i = 0; i < header.chunks(); ++i) {
    const int64_t bytes = ReadEntry(header, frame, i).bytes;
    const int64_t count = ChunkAt(header, i).count;
    const int64_t minimum = header.delta ? header.codec->MinEncodedBytes(type->dtype, count)
                                       : header.codec->MinAloneEncodedBytes(type->dtype, count);
    if (bytes < minimum || bytes > header.codec->MaxEncodedBytes(type->dtype, count)) {
      return Invalid("chunk " + std::to_string(i) + " cannot have " + std::to_string(bytes) +
                     " bytes");
    }
    payload_bytes += bytes;
  }
  if (payload_bytes != size - prefix_bytes) {
    return Invalid("it has " + std::to_string(size - prefix_bytes) +
                   " bytes of payload where its index has " + std::to_string(payload_bytes));
  }
  return made;
}

Status DecodeFrame(const FrameHeader& header, std::span<const std::byte> frame, const void* ref,
                   void* values, Workspace& workspace) {
  const DType dtype = header.type->dtype;
  CodingContext context(workspace);
  std::span<const std::byte> rest = frame.subspan(static_cast<size_t>(PrefixBytes(header)));
  for (int64_t i = 0; i < header.chunks(); ++i) {
    const Chunk chunk = ChunkAt(header, i);
    const IndexEntry entry = ReadEntry(header, frame, i);
    const auto payload = rest.first(static_cast<size_t>(entry.bytes));
    rest = rest.subspan(static_cast<size_t>(entry.bytes));
    const int64_t offset_bytes = chunk.first * SizeBytes(dtype);
    context.first = chunk.first;
    if (header.checksum && Crc32c(payload) != entry.checksum) {
      return Invalid("the checksum of chunk " + std::to_string(i) + " does not fit");
    }
    if (header.delta) {
      context.ref = static_cast<const std::byte*>(ref) + offset_bytes;
      if (ChecksumOfValues(context.ref, chunk.count * SizeBytes(dtype)) != entry.ref_checksum) {
        return {Code::kFailedPrecondition,
                "the reference is not the one that the frame was encoded with: they differ in "
                "chunk " + std::to_string(i)};
      }
    }
    Status status = header.codec->Decode(
        dtype, payload, static_cast<std::byte*>(values) + offset_bytes, chunk.count, context);
    if (!status.ok()) {
      return Invalid("chunk " + std::to_string(i) + ": " + status.message());
    }
  }
  return Status::Ok();
}

}  // namespace jaxccomp
