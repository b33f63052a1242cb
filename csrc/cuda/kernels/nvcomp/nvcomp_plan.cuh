// Plans kernels and memory around nvCOMP's batched calls. `machine` runs them:
//   Status operator()(TypeTag<Body>, const Body::Job&, int64_t ctas)   starts a kernel
//   Status Copy(void* to, const void* from, int64_t bytes)
//   CUstream_st* stream
// The library's machine uses a stream; the tests' machine runs bodies on the host, with a fake nvCOMP.
#pragma once

#include <cstdint>
#include <string>

#include "codec/nvcomp/formats.h"
#include "cuda/kernels/common/pieces.h"
#include "cuda/kernels/nvcomp/nvcomp.h"
#include "cuda/kernels/nvcomp/nvcomp_kernels.cuh"

namespace jaxccomp::cuda {

inline constexpr int64_t kNvcompAlignment = 16;   // the maximum over formats

// A chunk of zeros, encoded by nvCOMP on this device (see nvcomp_kernels.cuh).
inline constexpr int64_t kSeedValueBytes = 16 << 10;   // less than any chunk_bytes, to fit into a slot
struct NvcompSeed {
  const void* code = nullptr;   // aligned to 16
  size_t bytes = 0;
};

inline Chunked CutOf(const nvcomp::Spec& spec, DType dtype, int64_t count) {
  const int64_t bytes = count * SizeBytes(dtype);
  return {bytes, spec.chunk_bytes, nvcomp::ChunksOf(spec, bytes)};
}

inline bool IsAligned(const void* at) {
  return reinterpret_cast<uintptr_t>(at) % kNvcompAlignment == 0;
}

// The first word of every code with this spec and dtype.
inline uint32_t HeaderOf(const nvcomp::Spec& spec, DType dtype) {
  const nvcomp::Type type = nvcomp::RowOf(spec.format).type(dtype);
  return nvcomp::kMagic | static_cast<uint32_t>(spec.format) << 8 |
         static_cast<uint32_t>(type) << 16 | static_cast<uint32_t>(nvcomp::kMajorVersion) << 24;
}

inline Status NvcompStatus(nvcomp::Outcome outcome, const nvcomp::Spec& spec, const char* what) {
  if (outcome == nvcomp::kSuccess) return Status::Ok();
  return {Code::kUnavailable, "codec '" + std::string(nvcomp::RowOf(spec.format).name) +
                                  "': nvCOMP cannot " + what + " here: its status is " +
                                  std::to_string(outcome)};
}

// Runs steps in order until one fails; returns its status.
template <typename... Steps>
Status InTurn(const Steps&... steps) {
  Status status;
  const auto does = [&status](const auto& step) {
    (void)(status = step());
    return status.ok();
  };
  (void)(does(steps) && ...);
  return status;
}

inline Status CheckCount(const nvcomp::Spec& spec, DType dtype, int64_t count) {
  if (nvcomp::MaxEncodedBytes(spec, dtype, count) >= 0) return Status::Ok();
  return {Code::kInvalidArgument, std::to_string(count) + " is not a possible count of values of " +
                                      std::string(Name(dtype))};
}

// Memory that nvCOMP requires.
struct NvcompNeeds {
  int64_t slot_bytes = 0;
  int64_t temporary_bytes = 0;
};

inline Result<NvcompNeeds> EncodeNeeds(const nvcomp::Functions& functions, const nvcomp::Spec& spec,
                                       DType dtype, int64_t count) {
  if (Status status = CheckCount(spec, dtype, count); !status.ok()) return status;
  const Chunked cut = CutOf(spec, dtype, count);
  if (cut.chunks == 0) return NvcompNeeds{};
  const nvcomp::FormatRow& row = nvcomp::RowOf(spec.format);
  const nvcomp::Options options = row.encode_options(spec, row.type(dtype));
  const auto chunk = static_cast<size_t>(cut.chunk_bytes);
  size_t slot = 0, temporary = 0;
  const Status status = InTurn(
      [&] {
        return NvcompStatus(functions.encode_bound(chunk, options, &slot), spec,
                            "say how large a chunk can become");
      },
      [&] {
        return NvcompStatus(
            functions.encode_temporary(static_cast<size_t>(cut.chunks), chunk, options, &temporary,
                                       static_cast<size_t>(cut.value_bytes), nullptr),
            spec, "say how much memory encoding takes");
      });
  if (!status.ok()) return status;
  const auto slot_bytes = static_cast<int64_t>(slot + kNvcompAlignment - 1);
  return NvcompNeeds{slot_bytes / kNvcompAlignment * kNvcompAlignment,
                     static_cast<int64_t>(temporary)};
}

inline Result<NvcompNeeds> DecodeNeeds(const nvcomp::Functions& functions, const nvcomp::Spec& spec,
                                       DType dtype, int64_t count) {
  if (Status status = CheckCount(spec, dtype, count); !status.ok()) return status;
  const Chunked cut = CutOf(spec, dtype, count);
  if (cut.chunks == 0) return NvcompNeeds{};
  const nvcomp::FormatRow& row = nvcomp::RowOf(spec.format);
  size_t temporary = 0;
  const Status status = NvcompStatus(
      functions.decode_temporary(static_cast<size_t>(cut.chunks),
                                 static_cast<size_t>(cut.chunk_bytes),
                                 row.decode_options(spec, row.type(dtype)), &temporary,
                                 static_cast<size_t>(cut.chunks * cut.chunk_bytes), nullptr),
      spec, "say how much memory decoding takes");
  if (!status.ok()) return status;
  return NvcompNeeds{cut.chunk_bytes, static_cast<int64_t>(temporary)};
}

// The workspace of encoding or decoding.
struct NvcompMemory {
  NvcompMemory(void* workspace, const Chunked& cut, const NvcompNeeds& needs, const void* values)
      : pieces(workspace) {
    batch.sources = pieces.Take<const void*>(cut.chunks);
    batch.source_bytes = pieces.Take<size_t>(cut.chunks);
    batch.targets = pieces.Take<void*>(cut.chunks);
    batch.room = pieces.Take<size_t>(cut.chunks);
    batch.target_bytes = pieces.Take<size_t>(cut.chunks);
    batch.outcomes = pieces.Take<nvcomp::Outcome>(cut.chunks);
    offsets = pieces.Take<int64_t>(cut.chunks + 1);
    verdict = pieces.Take<Verdict>(1);
    slots = pieces.Take<std::byte>(cut.chunks * needs.slot_bytes);
    temporary = pieces.Take<std::byte>(needs.temporary_bytes);
    aligned = pieces.Take<std::byte>(IsAligned(values) ? 0 : cut.value_bytes);
  }
  Pieces pieces;
  Batch batch;
  int64_t* offsets;
  Verdict* verdict;
  std::byte* slots;
  std::byte* temporary;
  std::byte* aligned;   // an aligned copy of the values, if they are unaligned
};

inline int64_t NvcompMemoryBytes(const Chunked& cut, const NvcompNeeds& needs, const void* values) {
  return NvcompMemory(nullptr, cut, needs, values).pieces.bytes();
}

inline int64_t CtasOf(const Chunked& cut) { return (cut.chunks + kThreads - 1) / kThreads; }

template <typename Machine>
Status EncodeWith(Machine& machine, const nvcomp::Functions& functions,
                  const NvcompEncodeCall& call) {
  const nvcomp::FormatRow& row = nvcomp::RowOf(call.spec.format);
  const Result<NvcompNeeds> needs = EncodeNeeds(functions, call.spec, call.dtype, call.count);
  if (!needs.ok()) return needs.status();
  const Chunked cut = CutOf(call.spec, call.dtype, call.count);
  const NvcompMemory memory(call.workspace, cut, *needs, call.values);
  const SealCode::Job seal = {cut,           HeaderOf(call.spec, call.dtype), memory.offsets,
                              &memory.verdict->checksum, call.code, call.size};
  if (cut.chunks == 0) return machine(TypeTag<SealCode>{}, seal, 1);
  const bool aligned = IsAligned(call.values);
  const std::byte* const values =
      aligned ? static_cast<const std::byte*>(call.values) : memory.aligned;
  const int64_t pieces = PiecesOf(cut), all = cut.chunks * pieces;
  const int64_t packing = call.max_blocks > 0 && call.max_blocks < all ? call.max_blocks : all;
  const Batch& batch = memory.batch;
  return InTurn(
      [&] {
        return aligned ? Status::Ok() : machine.Copy(memory.aligned, call.values, cut.value_bytes);
      },
      [&] {
        return machine(TypeTag<BeginEncode>{},
                       {cut, values, memory.slots, needs->slot_bytes, batch,
                        &memory.verdict->checksum},
                       CtasOf(cut));
      },
      [&] {
        return NvcompStatus(
            functions.encode(batch.sources, batch.source_bytes,
                             static_cast<size_t>(cut.chunk_bytes), static_cast<size_t>(cut.chunks),
                             memory.temporary, static_cast<size_t>(needs->temporary_bytes),
                             batch.targets, batch.target_bytes,
                             row.encode_options(call.spec, row.type(call.dtype)), batch.outcomes,
                             machine.stream),
            call.spec, "encode");
      },
      [&] {
        return machine(TypeTag<PlaceChunks>{},
                       {cut, batch, memory.offsets, call.code, Alignment(call.code)}, 1);
      },
      [&] {
        return machine(TypeTag<PackChunks>{},
                       {cut, pieces, packing, values, memory.slots, needs->slot_bytes,
                        memory.offsets, call.code, &memory.verdict->checksum},
                       packing);
      },
      [&] { return machine(TypeTag<SealCode>{}, seal, 1); });
}

template <typename Machine>
Status DecodeWith(Machine& machine, const nvcomp::Functions& functions, const NvcompSeed& seed,
                  const NvcompDecodeCall& call) {
  const nvcomp::FormatRow& row = nvcomp::RowOf(call.spec.format);
  const Result<NvcompNeeds> needs = DecodeNeeds(functions, call.spec, call.dtype, call.count);
  if (!needs.ok()) return needs.status();
  const Chunked cut = CutOf(call.spec, call.dtype, call.count);
  const NvcompMemory memory(call.workspace, cut, *needs, call.values);
  const Batch& batch = memory.batch;
  const bool aligned = IsAligned(call.values);
  std::byte* const values = aligned ? static_cast<std::byte*>(call.values) : memory.aligned;
  const int64_t pieces = PiecesOf(cut);
  const auto parse = [&] {
    return machine(TypeTag<ParseCode>{},
                   {cut, call.code, call.code_bytes, Alignment(call.code),
                    HeaderOf(call.spec, call.dtype), memory.offsets, memory.verdict},
                   1);
  };
  const auto judge = [&] {
    return machine(TypeTag<JudgeChunks>{},
                   {cut, memory.offsets, batch, memory.verdict, call.status}, 1);
  };
  if (cut.chunks == 0) return InTurn(parse, judge);
  return InTurn(
      parse,
      [&] {
        return machine(
            TypeTag<UnpackChunks>{},
            {cut, pieces, call.code, memory.offsets, values, memory.slots, memory.verdict},
            cut.chunks * pieces);
      },
      [&] {
        return machine(TypeTag<AdmitChunks>{},
                       {cut, memory.offsets, values, memory.slots, seed.code, seed.bytes, batch,
                        memory.verdict},
                       CtasOf(cut));
      },
      [&] {
        return NvcompStatus(
            functions.decode(batch.sources, batch.source_bytes, batch.room, batch.target_bytes,
                             static_cast<size_t>(cut.chunks), memory.temporary,
                             static_cast<size_t>(needs->temporary_bytes), batch.targets,
                             row.decode_options(call.spec, row.type(call.dtype)), batch.outcomes,
                             machine.stream),
            call.spec, "decode");
      },
      judge,
      [&] {
        return aligned ? Status::Ok() : machine.Copy(call.values, values, cut.value_bytes);
      });
}

// A seed is the only chunk of a code of zeros, at offset kSeedAt in the code.
inline nvcomp::Spec SeedSpec(nvcomp::Spec spec) {
  spec.chunk_bytes = kSeedValueBytes;
  return spec;
}
inline constexpr int64_t kSeedAt = nvcomp::kHeaderBytes + nvcomp::kEntryBytes;
// The offset of such a code from an aligned address that makes its seed aligned.
inline constexpr int64_t kSeedCodeAt = kNvcompAlignment - kSeedAt % kNvcompAlignment;

}  // namespace jaxccomp::cuda
