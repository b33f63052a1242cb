// Fixed-rate codecs on a FakeStream, implemented by the CPU's codecs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "check.h"
#include "cuda/stream_codecs.h"
#include "fake_stream.h"

namespace jaxccomp::testing {

class FakeStreamCodecs final : public StreamCodecs {
 public:
  // `reach` maps device memory to an address that the host can access.
  explicit FakeStreamCodecs(std::function<std::byte*(const void*)> reach)
      : reach_(std::move(reach)) {}

  // "onebit" is left out, as an example of a missing kernel.
  bool Runs(const Codec& codec, DType dtype) const override {
    return codec.traits().fixed_rate && !codec.traits().lossless && codec.traits().spec.rfind("onebit", 0) != 0 &&
           codec.Supports(dtype) && dtype != DType::kFloat64;
  }

  Status Encode(const CodedRows& rows, const std::byte* values, const uint32_t* keys,
                std::byte* codes, void* stream) const override {
    return Push(rows, stream, [=, reach = reach_](const CodingContext& given, int64_t bytes) {
      for (int64_t row = 0; row < rows.rows; ++row) {
        CodingContext context = given;
        if (keys != nullptr) {
          const auto* const key = reinterpret_cast<const uint32_t*>(reach(keys)) + 2 * row;
          context.key.step = key[0] | static_cast<uint64_t>(key[1]) << 32;
        }
        CHECK_OK(rows.codec->Encode(
            rows.dtype, reach(values) + row * rows.count * SizeBytes(rows.dtype), rows.count,
            {reach(codes) + row * bytes, static_cast<size_t>(bytes)}, context));
      }
    });
  }

  Status Decode(const CodedRows& rows, const std::byte* codes, DType to, std::byte* values,
                void* stream) const override {
    return Push(rows, stream, [=, reach = reach_](const CodingContext& context, int64_t bytes) {
      for (int64_t row = 0; row < rows.rows; ++row) {
        DecodeRow(rows, reach(codes) + row * bytes, bytes, to,
                  reach(values) + row * rows.count * SizeBytes(to), context);
      }
    });
  }

  Status DecodeSum(const CodedRows& rows, const std::byte* codes, DType to, std::byte* sum,
                   void* stream) const override {
    return Push(rows, stream, [=, reach = reach_](const CodingContext& context, int64_t bytes) {
      DecodeRow(rows, reach(codes), bytes, to, reach(sum), context);
      for (int64_t row = 1; row < rows.rows; ++row) {
        CHECK_OK(rows.codec->DecodeMerge(
            rows.dtype, {reach(codes) + row * bytes, static_cast<size_t>(bytes)}, ReduceOp::kSum,
            to, reach(sum), rows.count, context));
      }
    });
  }

 private:
  template <typename Work>
  Status Push(const CodedRows& rows, void* stream, Work work) const {
    if (!Runs(*rows.codec, rows.dtype)) {
      return {Code::kUnimplemented, "the fake GPU has no kernels of '" + rows.codec->traits().spec + "'"};
    }
    static_cast<FakeStream*>(stream)->Push([rows, work] {
      static thread_local Workspace workspace;
      work(CodingContext(workspace), rows.codec->MaxEncodedBytes(rows.dtype, rows.count));
    });
    return Status::Ok();
  }

  // Decodes into float32 without rounding, by adding to -0, which changes no value.
  static void DecodeRow(const CodedRows& rows, const std::byte* code, int64_t bytes, DType to,
                        std::byte* values, const CodingContext& context) {
    const std::span<const std::byte> from(code, static_cast<size_t>(bytes));
    if (to == rows.dtype) {
      CHECK_OK(rows.codec->Decode(rows.dtype, from, values, rows.count, context));
      return;
    }
    std::fill_n(reinterpret_cast<float*>(values), rows.count, -0.0f);
    CHECK_OK(rows.codec->DecodeMerge(rows.dtype, from, ReduceOp::kSum, to, values, rows.count,
                                     context));
  }

  const std::function<std::byte*(const void*)> reach_;
};

}  // namespace jaxccomp::testing
