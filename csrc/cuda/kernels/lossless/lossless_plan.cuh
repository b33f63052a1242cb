// Plans the launches of "lossless": kernels, thread blocks and memory. A launcher has
//   int Launch(const Kernel& kernel, int64_t blocks, int shared_bytes)   returns 0 or an error
//   int64_t Resident<Kernel>(int shared_bytes)                           thread blocks that are resident at a time
#pragma once

#include "cuda/kernels/common/pieces.h"
#include "cuda/kernels/lossless/lossless.h"
#include "cuda/kernels/lossless/lossless_decode.cuh"
#include "cuda/kernels/lossless/lossless_encode.cuh"

namespace jaxccomp::cuda {

// The maximum number of thread blocks with separate memory in the workspace.
inline constexpr int64_t kMaxSlots = 256;

inline int64_t SegmentsOf(int64_t words) { return (words + kSegmentWords - 1) / kSegmentWords; }
inline int64_t BlocksOf(int64_t words) { return (words + kBlockWords - 1) / kBlockWords; }
inline int64_t AtLeastOne(int64_t n) { return n < 1 ? 1 : n; }
inline int64_t AtMost(int64_t n, int64_t maximum) { return n < maximum ? n : maximum; }

template <Layout layout>
struct EncodeMemory {
  EncodeMemory(void* workspace, int64_t words) : pieces(workspace) {
    const int64_t segments = SegmentsOf(words);
    ticket = pieces.Take<uint32_t>(1);
    state = pieces.Take<uint64_t>(segments);
    plans = pieces.Take<PlanePlan>(segments * Cutting<layout>::kPlanes);
    const int64_t slots = kInShared<layout> ? 0 : AtMost(segments, kMaxSlots);
    images = pieces.Take<uint8_t>(slots * kImageBytes<layout>);
  }
  Pieces pieces;
  uint32_t* ticket;
  uint64_t* state;
  PlanePlan* plans;
  uint8_t* images;
};

template <Layout layout>
struct DecodeMemory {
  DecodeMemory(void* workspace, int64_t words) : pieces(workspace) {
    offsets = pieces.Take<int64_t>(SegmentsOf(words));
    regions = pieces.Take<Region>(kRegions);
    chains = pieces.Take<int64_t>(kRegions * ChainEntries(words));
    parsed = pieces.Take<ParsedBlock<layout>>(BlocksOf(words));
    const int64_t slots = kScratchInShared<layout> ? 0 : AtMost(BlocksOf(words), kMaxSlots);
    scratch = pieces.Take<uint8_t>(slots * kScratchBytes<layout>);
  }
  Pieces pieces;
  int64_t* offsets;
  Region* regions;
  int64_t* chains;
  ParsedBlock<layout>* parsed;
  uint8_t* scratch;
};

inline bool AreVectors(const void* values) {
  return (reinterpret_cast<uintptr_t>(values) & 15) == 0;
}

template <Layout layout, typename Launcher>
int EncodeWith(Launcher& launcher, const LosslessEncodeCall& call) {
  const EncodeMemory<layout> memory(call.workspace, call.words);
  const bool vectors = AreVectors(call.src);
  const int64_t segments = AtLeastOne(SegmentsOf(call.words));
  auto* const src = static_cast<const uint8_t*>(call.src);
  const AnalyzeKernel<layout> analyze = {src,          call.words,    memory.plans,
                                         memory.state, memory.ticket, vectors};
  const int error = launcher.Launch(analyze, segments, sizeof(AnalyzeShared<layout>));
  if (error != 0) return error;
  const EncodeKernel<layout> encode = {
      .src = src,
      .words = call.words,
      .dst = reinterpret_cast<uint8_t*>(call.dst),
      .plans = memory.plans,
      .state = memory.state,
      .ticket = memory.ticket,
      .size = call.size,
      .images = memory.images,
      .vectors = vectors,
  };
  const int shared_bytes = kEncodeSharedBytes<layout>;
  const int64_t resident = launcher.template Resident<EncodeKernel<layout>>(shared_bytes);
  int64_t maximum = kInShared<layout> ? resident : AtMost(resident, kMaxSlots);
  if (call.max_blocks > 0) maximum = AtMost(maximum, call.max_blocks);
  return launcher.Launch(encode, AtMost(segments, maximum), shared_bytes);
}

template <Layout layout, typename Launcher>
int DecodeWith(Launcher& launcher, const LosslessDecodeCall& call) {
  const DecodeMemory<layout> memory(call.workspace, call.words);
  const Payload payload = {reinterpret_cast<const uint8_t*>(call.payload), call.payload_bytes};
  const SearchKernel<layout> search = {payload, call.words, memory.regions, memory.chains,
                                       call.status};
  const int64_t regions = AtLeastOne(
      AtMost((call.payload_bytes + kMinRegionBytes - 1) / kMinRegionBytes, kRegions));
  int error = launcher.Launch(search, regions, sizeof(uint32_t));
  if (error != 0) return error;
  const JoinKernel<layout> join = {
      .payload = payload,
      .words = call.words,
      .regions = memory.regions,
      .searched = static_cast<int>(regions),
      .chains = memory.chains,
      .offsets = memory.offsets,
      .status = call.status,
  };
  error = launcher.Launch(join, 1, sizeof(JoinShared));
  if (error != 0 || call.words == 0) return error;
  const ParseKernel<layout> parse = {payload, call.words, memory.offsets, call.status,
                                     memory.parsed};
  error = launcher.Launch(parse, (BlocksOf(call.words) + kParseThreads - 1) / kParseThreads, 0);
  if (error != 0) return error;
  const DecodeKernel<layout> decode = {
      .payload = payload.bytes,
      .words = call.words,
      .parsed = memory.parsed,
      .dst = static_cast<uint8_t*>(call.dst),
      .status = call.status,
      .scratch = memory.scratch,
      .vectors = AreVectors(call.dst),
  };
  const int shared_bytes = kDecodeSharedBytes<layout>;
  const int64_t resident = launcher.template Resident<DecodeKernel<layout>>(shared_bytes);
  const int64_t maximum = kScratchInShared<layout> ? resident : AtMost(resident, kMaxSlots);
  return launcher.Launch(decode, AtMost(BlocksOf(call.words), maximum), shared_bytes);
}

template <Layout layout>
struct Workspaces {
  static int64_t Encode(int64_t words) {
    return EncodeMemory<layout>(nullptr, words).pieces.bytes();
  }
  static int64_t Decode(int64_t words) {
    return DecodeMemory<layout>(nullptr, words).pieces.bytes();
  }
};

// Calls f.template operator()<layout>() for a run-time layout.
template <typename F>
auto WithLayout(Layout layout, F&& f) {
  switch (layout) {
    case Layout::kBytes1: return f.template operator()<Layout::kBytes1>();
    case Layout::kBytes2: return f.template operator()<Layout::kBytes2>();
    case Layout::kBytes4: return f.template operator()<Layout::kBytes4>();
    case Layout::kBytes8: return f.template operator()<Layout::kBytes8>();
    case Layout::kBFloat16: return f.template operator()<Layout::kBFloat16>();
    case Layout::kFloat16: return f.template operator()<Layout::kFloat16>();
    case Layout::kFloat32: return f.template operator()<Layout::kFloat32>();
    case Layout::kFloat64: break;
  }
  return f.template operator()<Layout::kFloat64>();
}

}  // namespace jaxccomp::cuda
