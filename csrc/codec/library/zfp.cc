// The codec "zfp". Wire format: a byte: 0, then the values unencoded; or 1, then a zfp stream of a
// one-dimensional field, without a header.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "codec/library/rows.h"
#include "codec/library/zfp_library.h"

namespace jaxccomp::library {
namespace {

constexpr std::byte kStored{0};
constexpr std::byte kCompressed{1};

struct StreamBytes {};   // keys of workspace buffers
struct AlignedValues {};
struct CheckedValues {};

// The largest magnitude; infinity if a value is not finite.
template <typename T>
double Largest(const T* values, int64_t count) {
  T largest = 0;
  bool finite = true;
  for (int64_t i = 0; i < count; ++i) {
    const T magnitude = std::fabs(values[i]);
    largest = magnitude > largest ? magnitude : largest;
    finite &= magnitude <= std::numeric_limits<T>::max();   // false for NaN
  }
  return finite ? largest : std::numeric_limits<double>::infinity();
}

template <typename T>
bool WithinTolerance(const T* a, const T* b, int64_t count, double tolerance) {
  bool within = true;
  for (int64_t i = 0; i < count; ++i) {
    within &= std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i])) <= tolerance;
  }
  return within;
}

class ZfpCodec final : public Codec {
 public:
  explicit ZfpCodec(const CodecOptions& options)
      : Codec({.spec = options.spec(),
               .dtypes = SetOf(DType::kFloat32) | SetOf(DType::kFloat64)}),
        rate_(options.Number("rate")),
        precision_(static_cast<unsigned>(options.Integer("precision"))),
        tolerance_(options.Number("tolerance")) {}

  // With a rate or a precision there is no bound: the error depends on the largest value of four.
  ErrorBound Bound(DType) const override {
    const double infinity = std::numeric_limits<double>::infinity();
    return {.absolute = tolerance_ > 0 ? tolerance_ : infinity};
  }

  int64_t MaxEncodedBytes(DType dtype, int64_t count) const override {
    const int64_t bytes = CheckedBytes(count, SizeBytes(dtype));
    return bytes <= 0 ? bytes : 1 + bytes;
  }

  int64_t MinEncodedBytes(DType dtype, int64_t count) const override {
    if (count == 0) return 0;
    const bool fixed = tolerance_ == 0 && precision_ == 0;
    const double block_bits = fixed ? std::floor(4 * rate_ + 0.5) : 1;
    const double words = std::ceil(static_cast<double>(count / 4) * block_bits / kZfpWordBits);
    const int64_t bytes = count * SizeBytes(dtype);
    const double min = std::max(words, 1.0) * (kZfpWordBits / 8);
    return 1 + (min < static_cast<double>(bytes) ? static_cast<int64_t>(min) : bytes);
  }

 protected:
  Result<int64_t> DoEncode(DType dtype, const void* src, int64_t count, std::byte* dst,
                           const CodingContext& context) const override {
    const int64_t bytes = count * SizeBytes(dtype);
    const int64_t compressed = dtype == DType::kFloat32
                                   ? Compress<float>(dtype, src, count, dst + 1, context.workspace)
                                   : Compress<double>(dtype, src, count, dst + 1,
                                                      context.workspace);
    dst[0] = compressed > 0 ? kCompressed : kStored;
    if (compressed > 0) return 1 + compressed;
    std::memcpy(dst + 1, src, bytes);
    return 1 + bytes;
  }

  Status DoDecode(DType dtype, std::span<const std::byte> src, void* dst, int64_t count,
                  const CodingContext& context) const override {
    const int64_t bytes = count * SizeBytes(dtype);
    const std::byte mode = src[0];
    src = src.subspan(1);
    const auto there = static_cast<int64_t>(src.size());
    if (mode == kStored) {
      if (there != bytes) return Invalid("stored values are not all there");
      std::memcpy(dst, src.data(), bytes);
      return Status::Ok();
    }
    if (mode != kCompressed) return Invalid("the mode is neither stored nor compressed");
    if (there >= bytes) return Invalid("a stream takes more bytes than stored values");
    ZfpObjects& zfp = context.workspace.Get<ZfpObjects>();
    if (!zfp.there()) return NoMemory();
    Configure(zfp, dtype);
    const bool aligned = reinterpret_cast<uintptr_t>(dst) % SizeBytes(dtype) == 0;
    void* out = aligned ? dst : context.workspace.Bytes<AlignedValues>(bytes);
    // The library reads up to `readable` bytes of an invalid stream: pad with zeros.
    const int64_t readable = std::max(zfp.Describe(dtype, out, count), there) + kPadBytes;
    std::byte* stream = context.workspace.Bytes<StreamBytes>(readable);
    std::memcpy(stream, src.data(), there);
    std::memset(stream + there, 0, readable - there);
    if (!zfp.Rewind(stream, readable)) return NoMemory();
    if (zfp.Decompress() != there) return Invalid("the stream has another length");
    if (!aligned) std::memcpy(dst, out, bytes);
    return Status::Ok();
  }

 private:
  // The library reads and writes whole words.
  static constexpr int64_t kPadBytes = 64;

  static Status NoMemory() {
    return {Code::kUnavailable, "there is no memory for the objects of the zfp library"};
  }

  void Configure(const ZfpObjects& zfp, DType dtype) const {
    const Zfp& library = ZfpLibrary::Get();
    if (tolerance_ > 0) {
      library.set_accuracy(zfp.stream(), tolerance_);
    } else if (precision_ > 0) {
      library.set_precision(zfp.stream(), precision_);
    } else {
      library.set_rate(zfp.stream(), rate_, ZfpType(dtype), 1, 0);
    }
  }

  // Returns the bytes of the stream; 0: store the values.
  template <typename T>
  int64_t Compress(DType dtype, const void* src, int64_t count, std::byte* dst,
                   Workspace& workspace) const {
    ZfpObjects& zfp = workspace.Get<ZfpObjects>();
    if (!zfp.there()) return 0;
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
    if (reinterpret_cast<uintptr_t>(src) % sizeof(T) != 0) {
      src = std::memcpy(workspace.Bytes<AlignedValues>(bytes), src, bytes);
    }
    const T* values = static_cast<const T*>(src);
    const double largest = Largest(values, count);
    // Values near the greatest one could become infinite.
    if (!(largest <= std::numeric_limits<T>::max() / 16)) return 0;
    Configure(zfp, dtype);
    const int64_t room = zfp.Describe(dtype, values, count) + kPadBytes;
    std::byte* stream = workspace.Bytes<StreamBytes>(room);
    if (!zfp.Rewind(stream, room)) return 0;
    const int64_t compressed = zfp.Compress();
    if (compressed == 0 || compressed >= bytes) return 0;
    // zfp keeps the tolerance only within its integers' precision: otherwise decode and check.
    const double safe = largest * (sizeof(T) == 4 ? 0x1p-20 : 0x1p-48);
    if (tolerance_ > 0 && !(safe <= tolerance_)) {
      std::byte* checked = workspace.Bytes<CheckedValues>(bytes);
      zfp.Describe(dtype, checked, count);
      if (!zfp.Rewind(stream, room) || zfp.Decompress() != compressed ||
          !WithinTolerance(values, reinterpret_cast<const T*>(checked), count, tolerance_)) {
        return 0;
      }
    }
    std::memcpy(dst, stream, compressed);
    return compressed;
  }

  const double rate_;
  const unsigned precision_;
  const double tolerance_;
};

constexpr CodecOption kOptions[] = {
    {.name = "precision",
     .default_value = "0",
     .description = "bit planes to keep of each four values; 0: see rate",
     .min = 0,
     .max = 64,
     .integer = true},
    {.name = "rate",
     .default_value = "8",
     .description = "bits per value; not with precision or tolerance",
     .min = 1,
     .max = 64},
    {.name = "tolerance",
     .default_value = "0",
     .description = "the greatest absolute error; 0: see rate",
     .min = 0,
     .max = 1e300}};

std::unique_ptr<const Codec> Make(const CodecOptions& options) {
  const int given = (options.Integer("precision") != 0) + (options.Number("rate") != 8) +
                    (options.Number("tolerance") != 0);
  return given > 1 ? nullptr : std::make_unique<ZfpCodec>(options);
}

}  // namespace

const CodecInfo kZfpRow = {
    .name = "zfp",
    .description = "zfp of float32 and float64, as a field of one dimension; needs libzfp",
    .ratio = "32 or 64 / rate; what precision or tolerance make it",
    .error = "the tolerance, which is never exceeded; none is promised for a rate or a precision",
    .dtypes = SetOf(DType::kFloat32) | SetOf(DType::kFloat64),
    .options = kOptions,
    .make = &Make,
    .missing = &ZfpLibrary::Missing};

}  // namespace jaxccomp::library
