#include "handlers/codec_handlers.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "codec/registry.h"
#include "common/dtype.h"
#include "handlers/arguments.h"
#include "handlers/call_sites.h"
#include "handlers/cuda_devices.h"

namespace jaxccomp {
namespace {

namespace ffi = xla::ffi;

using Bytes = ffi::Buffer<ffi::U8>;
using Keys = ffi::Buffer<ffi::U32>;

// The product of the first `count` dimensions.
template <typename Dimensions>
int64_t Product(const Dimensions& dimensions, size_t count) {
  int64_t product = 1;
  for (size_t i = 0; i < count; ++i) product *= dimensions[i];
  return product;
}

// A call's codec and sizes, from its attributes and buffers.
struct Coded {
  std::shared_ptr<const Codec> codec;
  DType dtype = DType::kFloat32;
  int64_t count = 0;         // values per row
  int64_t code_bytes = 0;    // encoded bytes per row
};

Status Wrong(std::string_view target, const std::string& what) {
  return {Code::kInvalidArgument,
          std::string(target) + ": " + what + "; was it lowered by another version of jaxccomp?"};
}

Result<Coded> Describe(std::string_view target, std::string_view spec, std::string_view dtype,
                       const ffi::AnyBuffer& values) {
  Coded coded;
  auto codec = LookupCodec(spec);
  if (!codec.ok()) return codec.status();
  coded.codec = *codec;
  const std::optional<DType> known = FindDType(dtype);
  if (!known || coded.codec == nullptr || !coded.codec->Supports(*known)) {
    return Wrong(target, "codec '" + std::string(spec) + "' has no values of dtype '" +
                             std::string(dtype) + "'");
  }
  coded.dtype = *known;
  const auto dimensions = values.dimensions();
  if (dimensions.size() == 0) return Wrong(target, "values are a scalar, not rows");
  coded.count = dimensions[dimensions.size() - 1];
  coded.code_bytes = coded.codec->MaxEncodedBytes(coded.dtype, coded.count);
  return coded;
}

// Checks the shape of encoded rows: [leading dimensions..., bytes of a row].
Status CheckCodes(std::string_view target, const Coded& coded,
                  const ffi::AnyBuffer::Dimensions& dimensions) {
  const int64_t bytes = dimensions.size() == 0 ? 0 : dimensions[dimensions.size() - 1];
  if (dimensions.size() > 0 && bytes == coded.code_bytes) return Status::Ok();
  return Wrong(target, "a code of " + std::to_string(coded.count) + " values by '" +
                           coded.codec->traits().spec + "' has " +
                           std::to_string(coded.code_bytes) + " bytes, not " +
                           std::to_string(bytes));
}

Status CheckRows(std::string_view target, int64_t rows, int64_t others, const char* of) {
  if (rows == others) return Status::Ok();
  return Wrong(target, std::to_string(others) + " " + of + " are given, but the codes need " +
                           std::to_string(rows));
}

template <typename T>
const std::byte* At(const T& buffer) {
  return static_cast<const std::byte*>(buffer.untyped_data());
}

Status Encode(void* stream, int32_t ordinal, const ffi::AnyBuffer& values,
              const ffi::RemainingArgs& others, ffi::Result<Bytes>& codes, std::string_view spec,
              std::string_view dtype) {
  constexpr std::string_view kName = "jaxccomp_encode";
  const Result<const StreamCodecs*> on_gpu = FindCudaStreamCodecs(ordinal);
  if (!on_gpu.ok()) return on_gpu.status();
  const Result<Coded> coded = Describe(kName, spec, dtype, values);
  if (!coded.ok()) return coded.status();
  if (FromXla(values.element_type()) != coded->dtype) {
    return Wrong(kName, "the values are not of dtype '" + std::string(dtype) + "'");
  }
  const auto from = values.dimensions(), to = codes->dimensions();
  if (Status status = CheckCodes(kName, *coded, to); !status.ok()) return status;
  const int64_t rows = Product(from, from.size() - 1);
  if (Status status = CheckRows(kName, Product(to, to.size() - 1), rows, "rows of values"); !status.ok()) {
    return status;
  }
  const uint32_t* keys = nullptr;
  if (others.size() > 0) {
    const auto given = others.get<Keys>(0);
    if (!given.has_value()) return Wrong(kName, "the keys are not of dtype 'uint32'");
    const auto words = static_cast<int64_t>(given->element_count());
    if (Status status = CheckRows(kName, 2 * rows, words, "words of keys"); !status.ok()) {
      return status;
    }
    keys = given->typed_data();
  }
  return (*on_gpu)->Encode({coded->codec.get(), coded->dtype, rows, coded->count}, At(values), keys,
                           static_cast<std::byte*>(codes->untyped_data()), stream);
}

Status Decode(void* stream, int32_t ordinal, const Bytes& codes,
              ffi::Result<ffi::AnyBuffer>& values, std::string_view spec, std::string_view dtype,
              bool sums) {
  const std::string_view name = sums ? "jaxccomp_decode_sum" : "jaxccomp_decode";
  const Result<const StreamCodecs*> on_gpu = FindCudaStreamCodecs(ordinal);
  if (!on_gpu.ok()) return on_gpu.status();
  const Result<Coded> coded = Describe(name, spec, dtype, *values);
  if (!coded.ok()) return coded.status();
  const std::optional<DType> to = FromXla(values->element_type());
  if (to != coded->dtype && to != DType::kFloat32) {
    return Wrong(name, "the results are neither of dtype '" + std::string(dtype) +
                           "' nor of 'float32'");
  }
  const auto from = codes.dimensions(), out = values->dimensions();
  if (Status status = CheckCodes(name, *coded, from); !status.ok()) return status;
  const int64_t results = Product(out, out.size() - 1);
  if (!sums) {
    const int64_t rows = Product(from, from.size() - 1);
    if (Status status = CheckRows(name, rows, results, "rows of values"); !status.ok()) return status;
    return (*on_gpu)->Decode({coded->codec.get(), coded->dtype, rows, coded->count}, At(codes), *to,
                             static_cast<std::byte*>(values->untyped_data()), stream);
  }
  if (from.size() < 2) return Wrong(name, "the codes have no rows");
  const int64_t rows = from[from.size() - 2];
  const int64_t groups = Product(from, from.size() - 2);
  if (Status status = CheckRows(name, groups, results, "rows of sums"); !status.ok()) return status;
  for (int64_t group = 0; group < groups; ++group) {
    const Status status = (*on_gpu)->DecodeSum(
        {coded->codec.get(), coded->dtype, rows, coded->count},
        At(codes) + group * rows * coded->code_bytes, *to,
        static_cast<std::byte*>(values->untyped_data()) + group * coded->count * SizeBytes(*to),
        stream);
    if (!status.ok()) return status;
  }
  return Status::Ok();
}

ffi::Error ExecuteEncode(void* stream, int32_t ordinal, ffi::AnyBuffer values,
                         ffi::RemainingArgs others, ffi::Result<Bytes> codes,
                         std::string_view spec, std::string_view dtype) {
  return ToError(Encode(stream, ordinal, values, others, codes, spec, dtype));
}

template <bool kSums>
ffi::Error ExecuteDecode(void* stream, int32_t ordinal, Bytes codes,
                         ffi::Result<ffi::AnyBuffer> values, std::string_view spec,
                         std::string_view dtype) {
  return ToError(Decode(stream, ordinal, codes, values, spec, dtype, kSums));
}

XLA_FFI_Error* EncodeHandler(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::Bind()
                             .Ctx<ffi::PlatformStream<void*>>()
                             .Ctx<ffi::DeviceOrdinal>()
                             .Arg<ffi::AnyBuffer>()
                             .RemainingArgs()
                             .Ret<Bytes>()
                             .Attr<std::string_view>("codec")
                             .Attr<std::string_view>("dtype")
                             .To(ExecuteEncode, {ffi::Traits::kCmdBufferCompatible})
                             .release();
  return handler->Call(frame);
}

template <bool kSums>
XLA_FFI_Error* DecodeHandler(XLA_FFI_CallFrame* frame) {
  static auto* handler = ffi::Ffi::Bind()
                             .Ctx<ffi::PlatformStream<void*>>()
                             .Ctx<ffi::DeviceOrdinal>()
                             .Arg<Bytes>()
                             .Ret<ffi::AnyBuffer>()
                             .Attr<std::string_view>("codec")
                             .Attr<std::string_view>("dtype")
                             .To(ExecuteDecode<kSums>, {ffi::Traits::kCmdBufferCompatible})
                             .release();
  return handler->Call(frame);
}

constexpr CodecHandler kHandlers[] = {
    {"jaxccomp_encode", EncodeHandler},
    {"jaxccomp_decode", DecodeHandler<false>},
    {"jaxccomp_decode_sum", DecodeHandler<true>},
};

}  // namespace

std::span<const CodecHandler> CodecHandlers() { return kHandlers; }

}  // namespace jaxccomp
