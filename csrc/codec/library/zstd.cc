#include <memory>

#include "codec/library/byte_codec.h"
#include "codec/library/found.h"
#include "codec/library/rows.h"
#include "common/dynamic_library.h"

namespace jaxccomp::library {
namespace {

constexpr const char* kSonames[] = {"libzstd.so.1"};

// Numbers of the stable interface's parameters.
constexpr int kCompressionLevel = 100;
constexpr int kContentSizeFlag = 200;
constexpr int kResetSession = 1;

class Zstd {
 public:
  Zstd() : library_("zstd", kSonames) {
    library_.Find("ZSTD_isError", &is_error);
    library_.Find("ZSTD_createCCtx", &create_compressor);
    library_.Find("ZSTD_freeCCtx", &free_compressor);
    library_.Find("ZSTD_CCtx_reset", &reset);
    library_.Find("ZSTD_CCtx_setParameter", &set_parameter);
    library_.Find("ZSTD_compress2", &compress);
    library_.Find("ZSTD_createDCtx", &create_decompressor);
    library_.Find("ZSTD_freeDCtx", &free_decompressor);
    library_.Find("ZSTD_findFrameCompressedSize", &frame_bytes);
    library_.Find("ZSTD_decompressDCtx", &decompress);
  }
  const std::string& missing() const { return library_.missing(); }

  unsigned (*is_error)(size_t) = nullptr;
  void* (*create_compressor)() = nullptr;
  size_t (*free_compressor)(void*) = nullptr;
  size_t (*reset)(void*, int) = nullptr;
  size_t (*set_parameter)(void*, int, int) = nullptr;
  size_t (*compress)(void*, void*, size_t, const void*, size_t) = nullptr;
  void* (*create_decompressor)() = nullptr;
  size_t (*free_decompressor)(void*) = nullptr;
  size_t (*frame_bytes)(const void*, size_t) = nullptr;
  size_t (*decompress)(void*, void*, size_t, const void*, size_t) = nullptr;

 private:
  DynamicLibrary library_;
};

using Library = Found<Zstd>;

struct FreeCompressor {
  void operator()(void* p) const { Library::Get().free_compressor(p); }
};
struct FreeDecompressor {
  void operator()(void* p) const { Library::Get().free_decompressor(p); }
};

// Kept in the workspace.
struct Compressor {
  std::unique_ptr<void, FreeCompressor> context{Library::Get().create_compressor()};
};
struct Decompressor {
  std::unique_ptr<void, FreeDecompressor> context{Library::Get().create_decompressor()};
};

class ZstdCodec final : public ByteCodec {
 public:
  explicit ZstdCodec(const CodecOptions& options)
      : ByteCodec(options, /*slow=*/true), level_(static_cast<int>(options.Integer("level"))) {}

 protected:
  // A frame's header; and a header and a byte for each block of at most 128 KiB.
  int64_t MinCompressedBytes(int64_t bytes) const override {
    constexpr int64_t kBlockBytes = 128 << 10;
    return 6 + 4 * (bytes / kBlockBytes + (bytes % kBlockBytes != 0));
  }

  int64_t Compress(const std::byte* src, int64_t bytes, std::byte* dst, int64_t room,
                   Workspace& workspace) const override {
    const Zstd& zstd = Library::Get();
    void* context = workspace.Get<Compressor>().context.get();
    // Reset first: a compression that did not fit leaves the context in a state that rejects parameters.
    if (context == nullptr || zstd.is_error(zstd.reset(context, kResetSession)) ||
        zstd.is_error(zstd.set_parameter(context, kCompressionLevel, level_)) ||
        zstd.is_error(zstd.set_parameter(context, kContentSizeFlag, 0))) {
      return 0;
    }
    const size_t compressed = zstd.compress(context, dst, room, src, bytes);
    return zstd.is_error(compressed) ? 0 : static_cast<int64_t>(compressed);
  }

  bool Decompress(std::span<const std::byte> src, std::byte* dst, int64_t bytes,
                  Workspace& workspace) const override {
    const Zstd& zstd = Library::Get();
    void* context = workspace.Get<Decompressor>().context.get();
    // Exactly one frame. Error codes are impossible sizes.
    return context != nullptr && zstd.frame_bytes(src.data(), src.size()) == src.size() &&
           zstd.decompress(context, dst, bytes, src.data(), src.size()) ==
               static_cast<size_t>(bytes);
  }

 private:
  const int level_;
};

constexpr CodecOption kOptions[] = {
    {.name = "level",
     .default_value = "1",
     .description = "more is smaller and slower",
     .min = 1,
     .max = 19,
     .integer = true},
    kShuffleOption};

}  // namespace

const CodecInfo kZstdRow = {
    .name = "zstd",
    .description = "Zstandard of byte planes; needs libzstd",
    .ratio = "1.1 to 1.2 for gradients in float32, 1.3 to 1.5 in bfloat16; never below 1",
    .lossless = true,
    .dtypes = kAllDTypes,
    .options = kOptions,
    .make = [](const CodecOptions& options) {
      return std::unique_ptr<const Codec>(new ZstdCodec(options));
    },
    .missing = &Library::Missing};

}  // namespace jaxccomp::library
