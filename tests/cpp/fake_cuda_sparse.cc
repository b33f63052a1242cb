#include <cstdio>
#include <cstring>
#include <string>

#include "check.h"
#include "codec/registry.h"
#include "cuda/kernels/sparse/sparse_plan.cuh"
#include "cuda_grid.h"
#include "fake_cuda_kernels.h"

namespace jaxccomp::testing {
namespace {

using cuda::Sparse;
using cuda::SparseDecodeCall;
using cuda::SparseEncodeCall;

const Codec& CodecOf(const Sparse& sparse) {
  char density[40];
  std::snprintf(density, sizeof(density), ":density=%.17g", sparse.density);
  const auto codec = LookupCodec(std::string(cuda::NameOf(sparse)) + density +
                                 (sparse.unbiased ? ",unbiased=true" : ""));
  if (!CHECK_OK(codec)) std::abort();
  return **codec;   // the table keeps it
}

SparseEncodeCall Reached(SparseEncodeCall call, auto reach) {
  call.values = reach(call.values);
  call.code = reach(call.code);
  call.workspace = reach(call.workspace);
  return call;
}

SparseDecodeCall Reached(SparseDecodeCall call, auto reach) {
  call.code = reach(call.code);
  call.values = reach(call.values);
  call.status = reach(call.status);
  call.workspace = reach(call.workspace);
  return call;
}

int64_t EncodeWorkspace(const Sparse& codec, DType dtype, int64_t count) {
  return cuda::SparseEncodeMemory(nullptr, codec, dtype, count).pieces.bytes();
}
int64_t DecodeWorkspace(const Sparse&, int64_t count) {
  return cuda::SparseDecodeMemory(nullptr, count).pieces.bytes();
}

void EncodeByCodec(const SparseEncodeCall& call) {
  const Codec& codec = CodecOf(call.codec);
  // So that what overlaps is seen.
  std::memset(call.workspace, 0xee,
              static_cast<size_t>(EncodeWorkspace(call.codec, call.dtype, call.count)));
  Workspace workspace;
  CodingContext context(workspace);
  context.key = call.key;
  context.first = call.first;
  const auto most = static_cast<size_t>(codec.MaxEncodedBytes(call.dtype, call.count));
  const Result<int64_t> bytes =
      codec.Encode(call.dtype, call.values, call.count, {call.code, most}, context);
  if (CHECK_OK(bytes) && call.size != nullptr) *call.size = *bytes;
}

template <bool kAdd>
void DecodeByCodec(const SparseDecodeCall& call) {
  const Codec& codec = CodecOf(call.codec);
  std::memset(call.workspace, 0xee, static_cast<size_t>(DecodeWorkspace(call.codec, call.count)));
  Workspace workspace;
  const CodingContext context(workspace);
  const std::span code(call.code, static_cast<size_t>(call.code_bytes));
  const Status status =
      kAdd ? codec.DecodeMerge(call.dtype, code, ReduceOp::kSum, DType::kFloat32, call.values,
                               call.count, context)
           : codec.Decode(call.dtype, code, call.values, call.count, context);
  if (!status.ok()) *call.status = 1;
}

template <typename Call, typename F>
Status PutCall(const Call& call, CUstream_st* stream, F f) {
  return Put(stream, [=](auto reach) { f(Reached(call, reach)); });
}

// What runs in the emulator.
template <typename Call, typename F>
Status PutBodies(const Call& call, CUstream_st* stream, F f) {
  return PutCall(call, stream, [=](const Call& here) {
    std::lock_guard<std::mutex> lock(EmulatorMutex());
    CHECK_OK(f(here));
  });
}

}  // namespace

void UseCodecsOfSparse(cuda::KernelTable* table) {
  table->sparse_encode_workspace_bytes = &EncodeWorkspace;
  table->sparse_decode_workspace_bytes = &DecodeWorkspace;
  table->sparse_encode = [](const SparseEncodeCall& call, CUstream_st* stream) {
    return PutCall(call, stream, &EncodeByCodec);
  };
  table->sparse_decode = [](const SparseDecodeCall& call, CUstream_st* stream) {
    return PutCall(call, stream, &DecodeByCodec<false>);
  };
  table->sparse_decode_sum = [](const SparseDecodeCall& call, CUstream_st* stream) {
    return PutCall(call, stream, &DecodeByCodec<true>);
  };
}

void UseBodiesOfSparse(cuda::KernelTable* table) {
  table->sparse_encode = [](const SparseEncodeCall& call, CUstream_st* stream) {
    return PutBodies(call, stream, [](const SparseEncodeCall& here) {
      return cuda::DispatchSparseEncode(here, LaunchHere{});
    });
  };
  table->sparse_decode = [](const SparseDecodeCall& call, CUstream_st* stream) {
    return PutBodies(call, stream, [](const SparseDecodeCall& here) {
      return cuda::DispatchSparseDecode<false>(here, LaunchHere{});
    });
  };
  table->sparse_decode_sum = [](const SparseDecodeCall& call, CUstream_st* stream) {
    return PutBodies(call, stream, [](const SparseDecodeCall& here) {
      return cuda::DispatchSparseDecode<true>(here, LaunchHere{});
    });
  };
}

}  // namespace jaxccomp::testing
