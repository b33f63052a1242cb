// The kernels that a FakeCuda has.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "check.h"
#include "codec/difference.h"
#include "codec/lossless/decode.h"
#include "codec/lossless/encode.h"
#include "codec/merge.h"
#include "codec/registry.h"
#include "common/crc32c.h"
#include "cuda/kernels/fixed_rate/formats.h"
#include "fake_cuda_kernels.h"
#include "reduce/residual.h"

namespace jaxccomp::testing {
namespace {

using cuda::FixedRate;
using cuda::LosslessDecodeCall;
using cuda::LosslessEncodeCall;
using lossless::Layout;

Workspace& OwnWorkspace() {
  static thread_local Workspace workspace;
  return workspace;
}

void CheckValues(DType dtype, const void* at) {
  CHECK_EQ(reinterpret_cast<uintptr_t>(at) % static_cast<uintptr_t>(SizeBytes(dtype)), 0u);
}

const Codec& CodecOf(const FixedRate& fixed) {
  const cuda::FormatRow& row = cuda::RowOf(fixed.format);
  std::string spec(row.name);
  if (fixed.format == cuda::Format::kTbq) {
    char text[40];
    std::snprintf(text, sizeof(text), ":threshold=%.9g", static_cast<double>(fixed.threshold));
    spec += text;
  } else if (fixed.format == cuda::Format::kBf16) {
    spec += fixed.stochastic ? ":rounding=stochastic" : "";
  } else if (row.blocks[0] != 0) {
    spec += ":block=" + std::to_string(fixed.block);
    const bool rounds = row.code_bits < 8 ? fixed.format != cuda::Format::kOneBit
                                          : fixed.format == cuda::Format::kInt8;
    if (rounds) spec += fixed.stochastic ? ",rounding=stochastic" : ",rounding=nearest";
  }
  const auto codec = LookupCodec(spec);
  if (!CHECK_OK(codec)) std::abort();
  return **codec;   // the table keeps it
}

std::span<const std::byte> CodeAt(const Codec& codec, DType dtype, const void* code, int64_t count) {
  return {static_cast<const std::byte*>(code),
          static_cast<size_t>(codec.MaxEncodedBytes(dtype, count))};
}

void EncodeLossless(const LosslessEncodeCall& call) {
  std::vector<std::byte> room(
      static_cast<size_t>(lossless::EncodeBoundBytes(call.layout, call.words)));
  const int64_t bytes =
      lossless::Encode(lossless::BestKernels(), call.layout, call.src, call.ref, call.words,
                       room.data(), OwnWorkspace().Get<lossless::Workspace>());
  std::memcpy(call.dst, room.data(), static_cast<size_t>(bytes));
  *call.size = *call.host_size = bytes;
}

void DecodeLossless(const LosslessDecodeCall& call) {
  lossless::Decoder decoder(lossless::BestKernels(), OwnWorkspace().Get<lossless::Workspace>());
  auto* dst = static_cast<std::byte*>(call.dst);
  auto* ref = static_cast<const std::byte*>(call.ref);
  Status status = decoder.Open(call.layout,
                               {call.payload, static_cast<size_t>(call.payload_bytes)}, call.words,
                               ref != nullptr);
  while (status.ok() && decoder.next_words() > 0) {
    const int64_t bytes = decoder.next_words() * lossless::Info(call.layout).word_bytes;
    status = decoder.Next(dst, ref);
    dst += bytes;
    if (ref != nullptr) ref += bytes;
  }
  *call.status = !status.ok();
}

Status PutEncode(const FixedRate& fixed, DType dtype, const void* values, int64_t count, void* code,
                 const RandomKey& key, int64_t first, CUstream_st* stream) {
  CheckValues(dtype, values);
  return Put(stream, [=](auto reach) {
    const Codec& codec = CodecOf(fixed);
    CodingContext context(OwnWorkspace());
    context.key = key;
    context.first = first;
    const auto room = CodeAt(codec, dtype, reach(code), count);
    CHECK_OK(codec.Encode(dtype, reach(values), count,
                          {const_cast<std::byte*>(room.data()), room.size()}, context));
  });
}

Status PutDecode(const FixedRate& fixed, DType dtype, const void* code, void* values, int64_t count,
                 CUstream_st* stream) {
  CheckValues(dtype, values);
  return Put(stream, [=](auto reach) {
    const Codec& codec = CodecOf(fixed);
    CHECK_OK(codec.Decode(dtype, CodeAt(codec, dtype, reach(code), count), reach(values), count,
                          CodingContext(OwnWorkspace())));
  });
}

Status PutDecodeSum(const FixedRate& fixed, DType dtype, const void* code, DType acc_dtype,
                    void* acc, int64_t count, CUstream_st* stream) {
  CheckValues(acc_dtype, acc);
  return Put(stream, [=](auto reach) {
    const Codec& codec = CodecOf(fixed);
    CHECK_OK(codec.DecodeMerge(dtype, CodeAt(codec, dtype, reach(code), count), ReduceOp::kSum,
                               acc_dtype, reach(acc), count, CodingContext(OwnWorkspace())));
  });
}

Status PutReduce(DType dtype, ReduceOp op, void* dst, std::span<const void* const> sources,
                 int64_t count, int64_t divisor, float* accumulator, CUstream_st* stream) {
  CHECK(count > 0);
  // As compute.h says, where one kernel takes three.
  const bool several = sources.size() > 3;
  const bool late = several && std::find(sources.begin() + 3, sources.end(), dst) != sources.end();
  if (late || (several && IsHalf(dtype))) CHECK(accumulator != nullptr);
  if (!several) CHECK(accumulator == nullptr);
  return Put(stream, [=, all = std::vector(sources.begin(), sources.end())](auto reach) {
    std::vector<const void*> here;
    for (const void* source : all) {
      CheckValues(dtype, source);
      here.push_back(reach(source));
    }
    if (accumulator != nullptr) {
      std::memset(reach(accumulator), 0xee,
                  static_cast<size_t>(count * std::max<int64_t>(sizeof(float), SizeBytes(dtype))));
    }
    Reduce(dtype, op, reach(dst), here, count, divisor);
  });
}

cuda::KernelTable MakeCpuKernels() {
  cuda::KernelTable table = {};
  table.encode = &PutEncode;
  table.decode = &PutDecode;
  table.decode_sum = &PutDecodeSum;
  // More than nothing, so that what overlaps is seen.
  table.lossless_encode_workspace_bytes = [](Layout, int64_t words) { return words / 4 + 100; };
  table.lossless_decode_workspace_bytes = [](Layout, int64_t words) { return words / 4 + 200; };
  table.lossless_encode = [](const LosslessEncodeCall& call, CUstream_st* stream) {
    FakeCuda::Of(stream).memory().CheckCode(call.dst, 1, /*read=*/false);
    return Error(Put(stream, [=](auto reach) {
      const LosslessEncodeCall here = Reached(call, reach);
      std::memset(here.workspace, 0xee, static_cast<size_t>(call.words / 4 + 100));
      EncodeLossless(here);
    }));
  };
  table.lossless_decode = [](const LosslessDecodeCall& call, CUstream_st* stream) {
    return Error(Put(stream, [=](auto reach) {
      const LosslessDecodeCall here = Reached(call, reach);
      std::memset(here.workspace, 0xee, static_cast<size_t>(call.words / 4 + 200));
      DecodeLossless(here);
    }));
  };
  UseCodecsOfSparse(&table);
  UseFakeNvcomp(&table);
  table.max_reduce_sources = [] { return 3; };
  table.reduce = &PutReduce;
  table.merge_values = [](DType dtype, const void* values, ReduceOp op, DType acc_dtype, void* acc,
                          int64_t count, CUstream_st* stream) {
    return Put(stream, [=](auto reach) {
      MergeValues(dtype, reach(values), op, acc_dtype, reach(acc), count);
    });
  };
  table.round_to_half = [](DType dtype, const float* values, int64_t divisor, void* dst,
                           int64_t count, CUstream_st* stream) {
    return Put(stream, [=](auto reach) {
      std::vector<float> divided(reach(values), reach(values) + count);
      const void* const sources[] = {divided.data()};
      Reduce(DType::kFloat32, ReduceOp::kSum, divided.data(), sources, count, divisor);
      RoundToHalf(dtype, divided.data(), reach(dst), count);
    });
  };
  table.add_lost = [](DType dtype, void* dst, const void* before, const void* values,
                      const void* decoded, int64_t count, int64_t times, CUstream_st* stream) {
    return Put(stream, [=](auto reach) {
      AddResidual(dtype, reach(dst), reach(before), reach(values), reach(decoded), count, times);
    });
  };
  table.subtract = [](DType dtype, bool exact, const void* values, const void* ref,
                      void* difference, int64_t count, CUstream_st* stream) {
    return Put(stream, [=](auto reach) {
      Subtract(dtype, exact, reach(values), reach(ref), reach(difference), count);
    });
  };
  table.add = [](DType dtype, bool exact, const void* difference, const void* ref, void* values,
                 int64_t count, CUstream_st* stream) {
    return Put(stream, [=](auto reach) {
      Add(dtype, exact, reach(difference), reach(ref), reach(values), count);
    });
  };
  table.fill = [](const Device::FillRun& run, CUstream_st* stream) {
    return Put(stream, [=](auto reach) {
      for (int64_t i = 0; i < run.count; ++i) {
        std::memcpy(reach(run.to) + i * run.element_bytes, run.element.data(),
                    static_cast<size_t>(run.element_bytes));
      }
    });
  };
  table.copy_runs = [](std::span<const Device::CopyRun> runs, CUstream_st* stream) {
    return Put(stream, [=, all = std::vector(runs.begin(), runs.end())](auto reach) {
      for (const Device::CopyRun& run : all) {
        std::memcpy(reach(run.to), reach(run.from), static_cast<size_t>(run.bytes));
      }
    });
  };
  table.checksum_workspace_bytes = [](int64_t bytes) { return bytes / 100 + 16; };
  table.checksum = [](const void* data, int64_t bytes, uint32_t* checksum, void* workspace,
                      CUstream_st* stream) {
    CHECK(bytes > 0);
    return Put(stream, [=](auto reach) {
      std::memset(reach(workspace), 0xee, static_cast<size_t>(bytes / 100 + 16));
      *reach(checksum) = Crc32c({static_cast<const std::byte*>(reach(data)),
                                 static_cast<size_t>(bytes)});
    });
  };
  return table;
}

}  // namespace

const cuda::KernelTable& CpuKernels() {
  static const cuda::KernelTable table = MakeCpuKernels();
  return table;
}

const cuda::KernelTable& EmulatedKernels() {
  static const cuda::KernelTable table = [] {
    cuda::KernelTable made = MakeCpuKernels();
    UseBodiesOfFixedRate(&made);
    UseBodiesOfSparse(&made);
    UseBodiesOfLossless(&made);
    return made;
  }();
  return table;
}

}  // namespace jaxccomp::testing
