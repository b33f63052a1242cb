// The handlers of codecs, called as XLA calls them, with the fake library's codecs on its
// streams.
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "common/dynamic_library.h"
#include "cuda/library.h"
#include "fake_gpu.h"
#include "fake_xla.h"
#include "handlers/codec_handlers.h"
#include "handlers/cuda_devices.h"
#include "lossy_codecs.h"

namespace jaxccomp {
namespace {

using testing::Attributes;
using testing::Buffers;
using testing::Bytes;
using testing::FakeGpu;
using testing::FakeStream;
using testing::Outcome;

constexpr int64_t kRows = 3, kCount = 500;
constexpr uint32_t kKeys[] = {1, 2, 3, 4, 5, 6};

const CodecHandler& Handler(std::string_view name) {
  for (const CodecHandler& handler : CodecHandlers()) {
    if (handler.name == name) return handler;
  }
  CHECK_EQ("no handler", name);
  return CodecHandlers()[0];
}

// A GPU and the stream of a program.
struct OneGpu {
  OneGpu() {
    AddLibraryPath(CudaLibrary::kName, JAXCCOMP_FAKE_CUDA);
    CHECK_OK(OpenCudaDevices({{0, 1000}, {1, 1001}}));
    const Result<CudaDevice> found = FindCudaDevice(0);
    CHECK_OK(found);
    gpu = static_cast<FakeGpu*>(found->stage->gpu());
  }
  FakeGpu* gpu;
  FakeStream stream{3};
};

OneGpu& Own() {
  static auto* one = new OneGpu;
  return *one;
}

// Bytes in the GPU's memory.
class OnGpu {
 public:
  explicit OnGpu(size_t bytes) : bytes_(bytes), at_(memory().Take(static_cast<int64_t>(bytes))) {}
  OnGpu(const void* from, size_t bytes) : OnGpu(bytes) {
    std::memcpy(memory().Shadow(at_), from, bytes);
  }
  ~OnGpu() { memory().GiveBack(at_); }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;
  void* at() const { return at_; }
  // The content after all work of the stream.
  Bytes Take() const {
    Own().stream.Finish();
    const std::byte* const from = memory().Shadow(at_);
    return {from, from + bytes_};
  }

 private:
  static testing::FakeMemory& memory() { return Own().gpu->memory; }
  const size_t bytes_;
  std::byte* const at_;
};

Attributes Of(const std::string& codec, const std::string& dtype = "float32") {
  Attributes given;
  given.Add("codec", codec);
  given.Add("dtype", dtype);
  return given;
}

Outcome Call(const char* name, Attributes attributes, Buffers arguments, Buffers results,
             int ordinal = 0) {
  XLA_FFI_ExecutionContext context;
  context.stream = &Own().stream;
  context.ordinal = ordinal;
  return testing::CallHandler(Handler(name).execute, XLA_FFI_ExecutionStage_EXECUTE, &context,
                              std::move(attributes), std::move(arguments), std::move(results));
}

Buffers One(XLA_FFI_DataType dtype, const OnGpu& memory, std::vector<int64_t> shape) {
  Buffers buffers;
  buffers.Add(dtype, memory.at(), std::move(shape));
  return buffers;
}

std::vector<float> Values() {
  std::vector<float> values(kRows * kCount);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 97) - 48.25f;
  return values;
}

// The encoded rows, one after the other, by the CPU's codec.
Bytes Codes(const std::string& spec) {
  const std::vector<float> values = Values();
  Bytes all;
  for (size_t row = 0; row < kRows; ++row) {
    const RandomKey key = {kKeys[2 * row] | uint64_t{kKeys[2 * row + 1]} << 32, 0, 0};
    const Bytes one = testing::EncodeValues(
        spec, DType::kFloat32, reinterpret_cast<const std::byte*>(values.data() + row * kCount),
        kCount, key, 0);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

TEST(codec_handlers_return_the_codecs_bytes) {
  for (const char* spec : {"int8", "int4:rounding=stochastic", "ternary", "bf16",
                           "bf16:rounding=stochastic", "tbq"}) {
    const std::vector<float> values = Values();
    const Bytes expected = Codes(spec);
    const int64_t bytes = static_cast<int64_t>(expected.size()) / kRows;
    const OnGpu from(values.data(), 4 * values.size()), keys(kKeys, sizeof(kKeys)),
        codes(expected.size());
    Buffers arguments = One(XLA_FFI_DataType_F32, from, {1, kRows, kCount});
    const std::string text = spec;
    if (text.find("stoch") != std::string::npos || text == "ternary") {
      arguments.Add(XLA_FFI_DataType_U32, keys.at(), {1, kRows, 2});
    }
    CHECK_EQ(Call("jaxccomp_encode", Of(spec), std::move(arguments),
                  One(XLA_FFI_DataType_U8, codes, {1, kRows, bytes})).message, "");
    CHECK(codes.Take() == expected);

    const OnGpu decoded(4 * values.size()), sums(4 * kCount);
    CHECK_EQ(Call("jaxccomp_decode", Of(spec), One(XLA_FFI_DataType_U8, codes, {kRows, bytes}),
                  One(XLA_FFI_DataType_F32, decoded, {kRows, kCount})).message, "");
    CHECK_EQ(Call("jaxccomp_decode_sum", Of(spec),
                  One(XLA_FFI_DataType_U8, codes, {1, kRows, bytes}),
                  One(XLA_FFI_DataType_F32, sums, {1, kCount})).message, "");
    const Bytes got = decoded.Take(), summed = sums.Take();
    const auto* const rows = reinterpret_cast<const float*>(got.data());
    const auto* const sum = reinterpret_cast<const float*>(summed.data());
    int64_t wrong = 0;
    for (int64_t i = 0; i < kCount; ++i) {
      wrong += sum[i] != rows[i] + rows[kCount + i] + rows[2 * kCount + i];
      wrong += text == "int8" && std::abs(rows[i] - values[static_cast<size_t>(i)]) > 0.25f;
    }
    CHECK_EQ(wrong, 0);
  }
}

TEST(codec_handlers_are_compatible_with_command_buffers) {
  for (const CodecHandler& handler : CodecHandlers()) {
    XLA_FFI_Metadata metadata = {};
    metadata.struct_size = XLA_FFI_Metadata_STRUCT_SIZE;
    XLA_FFI_Metadata_Extension extension = {};
    extension.extension_base = {XLA_FFI_Metadata_Extension_STRUCT_SIZE, XLA_FFI_Extension_Metadata,
                                nullptr};
    extension.metadata = &metadata;
    XLA_FFI_CallFrame frame = {};
    frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
    frame.api = &testing::FakeXla();
    frame.extension_start = &extension.extension_base;
    CHECK(handler.execute(&frame) == nullptr);
    CHECK_EQ(metadata.traits, XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE);
  }
}

TEST(codec_handlers_return_before_the_stream_ends) {
  const std::vector<float> values = Values();
  const OnGpu from(values.data(), 4 * values.size()), codes(Codes("int8").size());
  Own().stream.Push([] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); });
  const auto begun = std::chrono::steady_clock::now();
  CHECK_EQ(Call("jaxccomp_encode", Of("int8"), One(XLA_FFI_DataType_F32, from, {kRows, kCount}),
                One(XLA_FFI_DataType_U8, codes, {kRows, 532})).message, "");
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::milliseconds(40));
  CHECK(codes.Take() == Codes("int8"));
}

TEST(codec_handlers_refuse_mismatched_buffers) {
  const OnGpu values(4 * kRows * kCount), codes(4 * kRows * kCount);
  const auto f32 = [&](std::vector<int64_t> shape) {
    return One(XLA_FFI_DataType_F32, values, std::move(shape));
  };
  const auto u8 = [&](std::vector<int64_t> shape) {
    return One(XLA_FFI_DataType_U8, codes, std::move(shape));
  };
  const auto says = [](const Outcome& outcome, const char* text) {
    if (outcome.message.find(text) == std::string::npos) CHECK_EQ(outcome.message, text);
  };
  says(Call("jaxccomp_encode", Of("int9"), f32({500}), u8({532})), "int9");
  says(Call("jaxccomp_encode", Of("onebit"), f32({500}), u8({71})), "no kernels of 'onebit'");
  says(Call("jaxccomp_encode", Of("int8", "int32"), f32({500}), u8({532})), "dtype 'int32'");
  says(Call("jaxccomp_encode", Of("int8", "float16"), f32({500}), u8({532})),
       "the values are not of dtype 'float16'");
  says(Call("jaxccomp_encode", Of("int8"), f32({500}), u8({531})), "has 532 bytes, not 531");
  says(Call("jaxccomp_encode", Of("int8"), f32({2, 500}), u8({3, 532})),
       "2 rows of values are given, but the codes need 3");
  says(Call("jaxccomp_encode", Of("int8"), f32({}), u8({532})), "a scalar");
  Buffers keyed = f32({500});
  keyed.Add(XLA_FFI_DataType_U32, codes.at(), {3});
  says(Call("jaxccomp_encode", Of("ternary"), std::move(keyed), u8({129})),
       "3 words of keys are given, but the codes need 2");
  says(Call("jaxccomp_decode", Of("int8"), u8({532}), One(XLA_FFI_DataType_S32, values, {500})),
       "neither of dtype 'float32' nor of 'float32'");
  says(Call("jaxccomp_decode", Of("int8"), u8({532}), f32({2, 500})),
       "2 rows of values are given, but the codes need 1");
  says(Call("jaxccomp_decode_sum", Of("int8"), u8({532}), f32({500})), "the codes have no rows");
  says(Call("jaxccomp_decode_sum", Of("int8"), u8({2, 3, 532}), f32({3, 500})),
       "3 rows of sums are given, but the codes need 2");
  const Outcome foreign = Call("jaxccomp_encode", Of("int8"), f32({500}), u8({532}), 7);
  CHECK_EQ(foreign.code, XLA_FFI_Error_Code_FAILED_PRECONDITION);
  says(foreign, "GPU 7 has not been opened");
}

TEST(cuda_runs_on_streams_is_true_for_supported_codecs) {
  const auto runs = [](const char* spec, const char* dtype) {
    const Result<bool> found = CudaRunsOnStreams(spec, dtype);
    return CHECK_OK(found) && *found;
  };
  CHECK(runs("int8", "float32") && runs("ternary:rounding=nearest", "bfloat16"));
  CHECK(!runs("onebit", "float32") && !runs("int8", "float64") && !runs("raw", "float32"));
  CHECK(!runs("int8", "int32") && !runs("int8", "complex7"));
  CHECK(!CudaRunsOnStreams("int9", "float32").ok());
}

}  // namespace
}  // namespace jaxccomp
