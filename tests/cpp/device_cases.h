// What a device with CUDA's kernels computes has the bits of codec/part.h: by the tests on a fake CUDA,
// and those on a GPU.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "codec/part.h"
#include "common/crc32c.h"
#include "device_rig.h"
#include "fixed_rate_cases.h"

namespace jaxccomp::testing {

inline constexpr RandomKey kDeviceKey = {77, 5, 2};

inline const Codec* Find(const char* spec) { return spec == nullptr ? nullptr : &FindCodec(spec); }

inline std::string Words(const Codec* codec, DType dtype, int64_t count) {
  return (codec == nullptr ? "no codec" : codec->traits().spec) + " of " + std::to_string(count) + " " +
         std::string(Name(dtype));
}

// Values that all dtypes have, without NaN.
inline Bytes Numbers(DType dtype, int64_t count, int seed) {
  if (dtype == DType::kInt32) {
    Bytes bytes(static_cast<size_t>(count) * 4);
    for (int64_t i = 0; i < count; ++i) {
      const auto value = static_cast<int32_t>((i * 7919 + seed * 104729) % 1000 - 500);
      std::memcpy(&bytes[static_cast<size_t>(i) * 4], &value, 4);
    }
    return bytes;
  }
  Floats values = Gaussian(count);
  for (float& v : values) v *= static_cast<float>(seed % 5 + 1);
  std::rotate(values.begin(), values.begin() + seed % (count + 1), values.end());
  return AsDType(dtype, values);
}

inline Bytes Encoded(const Codec* codec, DType dtype, const Bytes& values, int64_t count,
                     const Bytes* ref = nullptr) {
  Workspace workspace;
  CodingContext context(workspace);
  context.key = kDeviceKey;
  context.first = 11;
  if (ref != nullptr) context.ref = ref->data();
  Bytes code(codec == nullptr ? values.size()
                              : static_cast<size_t>(codec->MaxEncodedBytes(dtype, count)));
  const Result<int64_t> bytes = EncodePart(codec, dtype, values.data(), count, code, context);
  if (CHECK_OK(bytes)) code.resize(static_cast<size_t>(*bytes));
  return code;
}

inline constexpr const char* kDeviceSpecs[] = {
    nullptr, "raw", "lossless", "int8:rounding=stochastic", "bf16", "fp16|lossless", "ternary",
    "onebit", "int4|lossless", "fp8_e4m3:block=64", "tbq:threshold=0.5",
    "topk:density=0.05", "dgc:density=0.1", "randomk:density=0.2,unbiased=true",
    "topk:density=0.3|lossless"};
inline constexpr DType kDeviceDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16,
                                          DType::kInt32};

using Codecs = std::vector<const Codec*>;   // null: none
inline Codecs DeviceCodecs() {
  Codecs codecs;
  for (const char* spec : kDeviceSpecs) codecs.push_back(Find(spec));
  return codecs;
}

template <typename F>
void ForEach(const Codecs& codecs, F f) {
  for (const Codec* codec : codecs) {
    for (DType dtype : kDeviceDTypes) {
      if (codec == nullptr || codec->Supports(dtype)) f(codec, dtype);
    }
  }
}

inline void CodeAndBack(DeviceRig& rig, const Codec* codec, DType dtype, int64_t count,
                        bool referenced) {
  const std::string what = Words(codec, dtype, count) + (referenced ? " with a reference" : "");
  const Bytes values = Numbers(dtype, count, 1);
  Bytes ref = values;
  ref.reserve(1);   // no values have an address, too
  for (size_t i = 0; i < ref.size(); i += 9) ref[i] ^= std::byte{3};
  const Bytes* const given = referenced ? &ref : nullptr;
  const Bytes expected = Encoded(codec, dtype, values, count, given);

  const size_t room =
      codec == nullptr ? values.size() : static_cast<size_t>(codec->MaxEncodedBytes(dtype, count));
  const std::span<std::byte> block = rig.Pinned(room + 12);
  std::byte* const from = rig.Values(values, static_cast<size_t>(SizeBytes(dtype)));
  std::byte* const ref_at = referenced ? rig.Values(ref) : nullptr;
  auto* const code_bytes = reinterpret_cast<int64_t*>(block.data());
  const std::span<std::byte> code = block.subspan(12, room);
  CHECK_OK(rig.Encode({codec, dtype, from, count, code, code_bytes, ref_at, block.data() + 8, kDeviceKey,
                       11}));
  if (!CHECK_EQ(*code_bytes, std::ssize(expected))) return;
  if (!std::equal(expected.begin(), expected.end(), code.begin())) CHECK_EQ("other bytes", what);
  uint32_t checksum = 0;
  if (referenced) {
    std::memcpy(&checksum, block.data() + 8, sizeof(checksum));
    CHECK_EQ(checksum, Crc32c(ref));
  }

  Workspace workspace;
  CodingContext context(workspace);
  if (referenced) context.ref = ref.data();
  Bytes decoded(values.size());
  CHECK_OK(DecodePart(codec, dtype, expected, decoded.data(), count, context));
  // Where the reference lies, too.
  std::byte* const to = referenced ? ref_at : rig.Values(Bytes(values.size()));
  const std::span<const std::byte> arrived = rig.Code(expected);
  if (referenced) {
    CHECK_EQ(rig.Decode({codec, dtype, arrived, to, count, ref_at, checksum + 1}).code(),
             Code::kFailedPrecondition);
    if (rig.Take(to, values.size()) != ref) CHECK_EQ("decoded against another reference", what);
  }
  CHECK_OK(rig.Decode({codec, dtype, arrived, to, count, ref_at, checksum}));
  if (rig.Take(to, values.size()) != decoded) CHECK_EQ("other values", what);
  if (count == 0 || expected.empty()) return;
  CHECK_EQ(rig.Decode({codec, dtype, arrived.first(arrived.size() - 1), to, count, nullptr, 0})
               .code(),
           Code::kDataLoss);
}

inline void CodeAll(DeviceRig& rig, const std::vector<int64_t>& counts,
                    const Codecs& codecs = DeviceCodecs()) {
  ForEach(codecs, [&](const Codec* codec, DType dtype) {
    for (int64_t count : counts) {
      CodeAndBack(rig, codec, dtype, count, false);
      if (codec != nullptr) CodeAndBack(rig, codec, dtype, count, true);
    }
  });
}

// Merges `shape`: 'v' for values, 'c' for a code, 'd' for values that lie where the result goes.
inline void MergeOnce(DeviceRig& rig, const Codec* codec, DType dtype, int64_t count, ReduceOp op,
                      int64_t divisor, const std::string& shape) {
  std::vector<MergeSource> here, there;
  std::vector<Bytes> kept;
  kept.reserve(shape.size());
  Bytes expected(static_cast<size_t>(count * SizeBytes(dtype)));
  expected.reserve(1);   // no values have an address, too
  std::byte* const to = rig.Values(expected);
  for (size_t i = 0; i < shape.size(); ++i) {
    Bytes values = Numbers(dtype, count, static_cast<int>(i) + 2);
    if (shape[i] == 'c') {
      kept.push_back(Encoded(codec, dtype, values, count));
      here.push_back({nullptr, kept.back()});
      there.push_back({nullptr, rig.Code(kept.back())});
    } else if (shape[i] == 'd') {
      expected = values;
      rig.Put(to, values);
      here.push_back({expected.data()});
      there.push_back({to});
    } else {
      there.push_back({rig.Values(values)});
      values.reserve(1);
      kept.push_back(std::move(values));
      here.push_back({kept.back().data()});
    }
  }
  Workspace workspace;
  CHECK_OK(MergePart(codec, dtype, op, divisor, expected.data(), count, here, workspace));
  CHECK_OK(rig.Merge(op, divisor, {codec, dtype, to, count, there}));
  if (rig.Take(to, expected.size()) != expected) {
    CHECK_EQ("other bits", Words(codec, dtype, count) + " " + std::string(Name(op)) + " by " +
                               std::to_string(divisor) + " of " + shape);
  }
}

inline void MergeAll(DeviceRig& rig, int64_t count, const Codecs& codecs = DeviceCodecs()) {
  ForEach(codecs, [&](const Codec* codec, DType dtype) {
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kProd}) {
      for (const char* shape : {"vc", "cv", "dc", "cd", "cc", "vcc", "dcccc", "c", "vd", "vvvvd"}) {
        for (int64_t divisor : {1, 3}) {
          if (divisor > 1 && (op != ReduceOp::kSum || dtype == DType::kInt32)) continue;
          MergeOnce(rig, codec, dtype, count, op, divisor, shape);
        }
      }
    }
  });
}

inline void LoseAll(DeviceRig& rig, const std::vector<int64_t>& counts,
                    const Codecs& codecs = DeviceCodecs()) {
  ForEach(codecs, [&](const Codec* codec, DType dtype) {
    if (dtype == DType::kInt32) return;
    for (int64_t count : counts) {
      for (bool more : {false, true}) {
        const Bytes values = Numbers(dtype, count, 3), before = Numbers(dtype, count, 4);
        const Bytes code = Encoded(codec, dtype, values, count);
        Bytes expected = before;
        Workspace workspace;
        CHECK_OK(ResidualPart(codec, dtype, expected.data(), more ? expected.data() : nullptr,
                          values.data(), code, count, 4, workspace));
        std::byte* const to = rig.Values(before);
        CHECK_OK(rig.Residual(4, {codec, dtype, to, more, rig.Values(values), rig.Code(code), count}));
        if (rig.Take(to, expected.size()) != expected) {
          CHECK_EQ("other losses", Words(codec, dtype, count));
        }
      }
    }
  });
}

}  // namespace jaxccomp::testing
